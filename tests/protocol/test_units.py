"""Amounts, resources and compute units: exact, never negative, never mixed."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from protocol.units import (
    ZERO,
    Bytes,
    ComputeUnit,
    MilliCpu,
    QuantityError,
    Resources,
)

GI = 1024**3
counts = st.integers(0, 2**63 - 1)
steps = st.integers(1, 2**40)
resources = st.builds(Resources, st.builds(MilliCpu, counts), st.builds(Bytes, counts))
units = st.builds(ComputeUnit, st.builds(MilliCpu, steps), st.builds(Bytes, steps))


@given(counts, counts)
def test_sums_and_differences_are_those_of_whole_numbers(left: int, right: int) -> None:
    more, less = Bytes(max(left, right)), Bytes(min(left, right))
    assert more + less == Bytes(left + right)
    assert more - less == Bytes(abs(left - right))
    assert less.minus_or_zero(more) == Bytes(0)
    assert more.minus_or_zero(less) == more - less


def test_an_amount_never_becomes_negative() -> None:
    with pytest.raises(QuantityError) as refused:
        MilliCpu(1) - MilliCpu(2)
    assert str(refused.value) == "MilliCpu cannot be negative: -1"
    with pytest.raises(QuantityError):
        Bytes(1) * -1


def test_amounts_of_different_kinds_do_not_mix() -> None:
    cpu, mem = MilliCpu(1), Bytes(1)
    for mix in (cpu.__add__, cpu.__sub__, cpu.minus_or_zero, cpu.units_down, cpu.units_up, cpu.ratio, cpu.up_to):
        with pytest.raises(TypeError, match="cannot combine MilliCpu with Bytes"):
            mix(mem)  # type: ignore[operator, arg-type]  # the point of the test
    assert {cpu, mem} == {MilliCpu(1), Bytes(1)}


@given(counts, steps)
def test_units_cover_from_below_and_from_above(value: int, step: int) -> None:
    amount, unit = Bytes(value), Bytes(step)
    assert amount.down_to(unit) <= amount <= amount.up_to(unit)
    assert amount.up_to(unit).value - amount.down_to(unit).value in (0, step)
    assert amount.is_multiple_of(unit) == (amount.up_to(unit) == amount)
    assert (amount.units_down(unit), amount.units_up(unit)) == (value // step, -(-value // step))


@given(counts, st.floats(0, 4))
@example(1000, 0.7)
def test_fraction_is_decimal_and_rounds_down(value: int, fraction: float) -> None:
    exact = Fraction(Decimal(repr(fraction)))
    whole = MilliCpu(value * exact.numerator // exact.denominator)
    assert MilliCpu(value).scaled(fraction) == MilliCpu(value).scaled(exact) == whole


def test_ratios_truth_and_totals() -> None:
    assert Bytes(1).ratio(Bytes(4)) == 0.25
    assert (bool(Bytes(0)), bool(Bytes(1))) == (False, True)
    assert sorted([Bytes(2), Bytes(1)]) == [Bytes(1), Bytes(2)]


@pytest.mark.parametrize(
    ("milli", "text", "whole"), [(0, "0", 0), (250, "250m", 1), (1000, "1", 1), (1250, "1250m", 2)]
)
def test_cpu_is_written_as_kubernetes_writes_it(milli: int, text: str, whole: int) -> None:
    cpu = MilliCpu(milli)
    assert (str(cpu), cpu.quantity(), cpu.whole_cpus, cpu.as_cores) == (text, text, whole, milli / 1000)
    assert MilliCpu.parse(text) == cpu


@given(st.floats(0, 10**6))
def test_cores_round_up_without_float_noise(cores: float) -> None:
    over = MilliCpu.cores(cores).value - Fraction(cores) * 1000
    assert -Fraction(1, 10**6) < over < 1


@given(st.integers(0, 10**7))
def test_thousandths_of_a_core_survive_being_a_float(milli: int) -> None:
    assert MilliCpu.cores(milli / 1000) == MilliCpu.parse(milli / 1000) == MilliCpu(milli)


@given(st.lists(st.integers(0, 10**5), max_size=50))
def test_the_noise_of_summing_floats_costs_nothing(millis: list[int]) -> None:
    assert MilliCpu.cores(sum(milli / 1000 for milli in millis)) == MilliCpu(sum(millis))


@pytest.mark.parametrize(("cores", "milli"), [(0.1, 100), (0.1 + 0.2, 300), (0.0011, 2), (0.1000001, 101), (1e-12, 0)])
def test_cores_by_example(cores: float, milli: int) -> None:
    assert MilliCpu.cores(cores) == MilliCpu(milli)


@pytest.mark.parametrize("cores", [float("nan"), float("inf"), -0.5])
def test_cores_that_are_no_amount_are_refused(cores: float) -> None:
    with pytest.raises(QuantityError):
        MilliCpu.cores(cores)


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (1000, "1000"), (1024, "1Ki"), (3 * GI // 2, "1536Mi"), (4 * GI, "4Gi"), (2**70, "1024Ei")],
)
def test_memory_is_written_with_the_greatest_whole_suffix(value: int, text: str) -> None:
    mem = Bytes(value)
    assert (str(mem), mem.quantity(), mem.as_gib) == (text, text, value / GI)
    assert Bytes.parse(text) == mem


@given(resources, resources)
def test_resources_treat_cpu_and_memory_independently(left: Resources, right: Resources) -> None:
    total = left + right
    assert (total.cpu, total.mem) == (left.cpu + right.cpu, left.mem + right.mem)
    assert total - right == left
    assert left.at_least(right) == right.at_least(left)
    assert left.at_most(right) + left.at_least(right) == total
    assert left.at_most(right).within(left)
    assert left.within(left.at_least(right))
    assert left.minus_or_zero(right) == left - left.at_most(right)
    assert left.within(right) == (left.cpu <= right.cpu and left.mem <= right.mem)
    assert left.each(right, lambda mine, theirs: mine == theirs) == (left.cpu == right.cpu, left.mem == right.mem)
    assert Resources.sum([left, right]) == total


@given(resources, units)
def test_units_cover_larger_fit_smaller(amount: Resources, unit: ComputeUnit) -> None:
    up, down = amount.units_up(unit), min(amount.cpu.units_down(unit.cpu), amount.mem.units_down(unit.mem))
    assert amount.within(unit * up)
    assert (unit * down).within(amount)
    assert not amount.within(unit * (up - 1)) if up else amount == ZERO
    assert not (unit * (down + 1)).within(amount)


def test_resources_read_show_and_count() -> None:
    assert Resources.parse("250m", "1Gi") == Resources(MilliCpu(250), Bytes(GI))
    assert str(Resources.parse("250m", "1Gi")) == "250m cpu, 1Gi"
    assert Resources.parse(1, 0).any
    assert Resources.parse(0, 1).any
    assert not ZERO.any
    assert Resources.sum([]) == ZERO
    assert Resources.parse(1, 1) * 3 == Resources.parse(3, 3)


@pytest.mark.parametrize(("cpu", "mem"), [(0, "1Gi"), ("250m", 0)])
def test_a_compute_unit_is_above_zero_in_both(cpu: str | int, mem: str | int) -> None:
    with pytest.raises(QuantityError, match=r"^a compute unit needs CPU and memory above zero"):
        ComputeUnit.parse(cpu, mem)
    assert ComputeUnit.parse("250m", "1Gi") * 2 == Resources.parse("500m", "2Gi")
