"""Shares are max-min fair by weight and use up all free room, for any bounds and any order of the VMs."""

from __future__ import annotations

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from protocol.units import ZERO, Bytes, ComputeUnit, MilliCpu, Resources
from scheduler_plugin.ledger.accounts.fair_shares import VmShare, fair_shares

UNIT = ComputeUnit(MilliCpu(3), Bytes(1))
AMOUNTS = st.builds(Resources, st.integers(0, 25).map(MilliCpu), st.integers(0, 25).map(Bytes))
SHAPES = st.lists(st.tuples(AMOUNTS, AMOUNTS, st.sampled_from([1, 2, 3, 7, 10, 100])), min_size=1, max_size=6)
ROOMS = st.builds(Resources, st.integers(0, 200).map(MilliCpu), st.integers(0, 200).map(Bytes))


def spans_of(shapes: list[tuple[Resources, Resources, int]]) -> list[VmShare]:
    return [
        VmShare(minimum, minimum + extra, weight, (0.0, str(n))) for n, (minimum, extra, weight) in enumerate(shapes)
    ]


def millis(count: int) -> Resources:
    return Resources(MilliCpu(count), Bytes(0))


def cores(*counts: int) -> list[Resources]:
    return [millis(count) for count in counts]


def shared(room: int, *bounds: tuple[int, int, int]) -> list[Resources]:
    """The shares of VMs with bounds and weights, all in thousandths of a vCPU, in units of one."""
    spans = [
        VmShare(millis(minimum), millis(maximum), weight, (0.0, str(n)))
        for n, (minimum, maximum, weight) in enumerate(bounds)
    ]
    return fair_shares(millis(room), spans, ComputeUnit(MilliCpu(1), Bytes(1)))


def test_small_wish_is_met() -> None:
    assert shared(12, (0, 2, 1), (0, 9, 1), (0, 20, 1)) == cores(2, 5, 5)


def test_smallest_vm_grows_first() -> None:
    assert shared(16, (10, 20, 1), (2, 8, 1)) == cores(10, 6)


def test_weight_counts() -> None:
    assert shared(12, (0, 20, 10), (0, 20, 20)) == cores(4, 8)


def test_first_rank_gets_the_last_step() -> None:
    assert shared(5, (0, 9, 10), (0, 9, 10)) == cores(3, 2)


def test_nobody_falls_below_its_least() -> None:
    assert shared(5, (4, 9, 1), (4, 9, 1)) == cores(4, 4)


@given(SHAPES, ROOMS)
def test_all_room_is_shared_and_never_more(shapes: list[tuple[Resources, Resources, int]], room: Resources) -> None:
    spans = spans_of(shapes)
    shares = fair_shares(room, spans, UNIT)
    assert all(
        span.minimum.within(share) and share.within(span.maximum) for span, share in zip(spans, shares, strict=True)
    )
    minimum, maximum = (Resources.sum(getattr(span, bound) for span in spans) for bound in ("minimum", "maximum"))
    assert Resources.sum(shares) == room.at_most(maximum).at_least(minimum)


@given(SHAPES, ROOMS)
def test_no_step_could_go_to_one_worse_off(shapes: list[tuple[Resources, Resources, int]], room: Resources) -> None:
    """A VM that could get more would have more for its weight than the VM that it was taken from."""
    spans = spans_of(shapes)
    shares = fair_shares(room, spans, UNIT)
    for resource in ("cpu", "mem"):
        step = getattr(UNIT, resource).value
        minimum, maximum, has = (
            [getattr(of, resource).value for of in amounts]
            for amounts in ([span.minimum for span in spans], [span.maximum for span in spans], shares)
        )
        for poor, poorer in enumerate(spans):
            for rich, richer in enumerate(spans):
                if has[poor] < maximum[poor] and has[rich] - step >= minimum[rich] and poor != rich:
                    assert (has[rich] - step) * poorer.weight < (has[poor] + step) * richer.weight


@given(SHAPES, ROOMS, st.randoms(use_true_random=False))
def test_order_changes_nothing(shapes: list[tuple[Resources, Resources, int]], room: Resources, chance: Random) -> None:
    spans = spans_of(shapes)
    mixed = list(spans)
    chance.shuffle(mixed)
    shares = dict(zip((span.rank for span in spans), fair_shares(room, spans, UNIT), strict=True))
    assert dict(zip((span.rank for span in mixed), fair_shares(room, mixed, UNIT), strict=True)) == shares


@given(AMOUNTS, AMOUNTS, st.integers(1, 100), st.integers(1, 6), ROOMS)
def test_equals_get_the_same_but_for_a_step(
    minimum: Resources, extra: Resources, weight: int, count: int, room: Resources
) -> None:
    shares = fair_shares(room, spans_of([(minimum, extra, weight)] * count), UNIT)
    cpus, mems = [share.cpu.value for share in shares], [share.mem.value for share in shares]
    assert max(cpus) - min(cpus) <= UNIT.cpu.value
    assert max(mems) - min(mems) <= UNIT.mem.value


def test_nobody_shares_nothing() -> None:
    assert fair_shares(ZERO, [], UNIT) == []
