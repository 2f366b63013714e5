"""The simulated kernel: honest counters for any load, size and moment."""

from __future__ import annotations

from math import exp

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deploy.neonvm.simulated.simulated_load import Demand, Load, LoadStep
from deploy.neonvm.simulated.simulated_model import SimulatedKernel
from protocol.units import Bytes, MilliCpu, Resources, Seconds

GIB = 1024**3
CPUS = 4


def size(cpu: int, gib: float = 1.0) -> Resources:
    return Resources(MilliCpu(cpu), Bytes(int(gib * GIB)))


def kernel(cpu: int, demand: float, gib: float = 1.0, used: float = 0.25) -> SimulatedKernel:
    return SimulatedKernel.booted(Load.constant(demand, Bytes(int(used * GIB))), size(cpu, gib), CPUS)


def test_enough_cpu_means_no_waiting() -> None:
    after = kernel(2000, 0.5).advanced(Seconds(10)).counters
    assert after.busy == pytest.approx((2.5, 2.5, 0, 0))
    assert after.idle == pytest.approx((7.5, 7.5, 0, 0))
    assert (after.cpu_waiting, after.mem_waiting) == (0, 0)


def test_too_little_cpu_means_busy_and_waiting() -> None:
    after = kernel(2000, 3).advanced(Seconds(10)).counters
    assert after.busy == pytest.approx((10, 10, 0, 0))
    assert after.cpu_waiting == pytest.approx(5)
    assert kernel(2000, 40).advanced(Seconds(10)).counters.cpu_waiting == pytest.approx(10)


def test_fractional_cpu_is_one_partly_used() -> None:
    after = kernel(250, 1).advanced(Seconds(8)).counters
    assert (after.busy[0], after.idle[0], after.cpu_waiting) == pytest.approx((2, 6, 8))


def test_memory_shortage_stalls_guest() -> None:
    short = kernel(1000, 0, gib=1, used=1.5)
    assert short.mem_used == Bytes(GIB)
    assert short.advanced(Seconds(10)).counters.mem_waiting == pytest.approx(5)


def test_nothing_at_all_leaves_everybody_waiting() -> None:
    nothing = SimulatedKernel.booted(Load.constant(1, Bytes(1)), Resources(MilliCpu(0), Bytes(0)), CPUS)
    after = nothing.advanced(Seconds(10)).counters
    assert (after.busy, after.cpu_waiting, after.mem_waiting) == ((0,) * CPUS, 10, 10)


def test_load_averages_decay_like_kernels() -> None:
    """The kernel multiplies by exp(-5/60) every five seconds; a minute of it at three tasks is 1 - 1/e of three."""
    sampled = 0.0
    for _ in range(12):
        sampled = sampled * exp(-5 / 60) + 3 * (1 - exp(-5 / 60))
    one, five, fifteen = kernel(1000, 3).advanced(Seconds(60)).counters.load
    assert one == pytest.approx(sampled)
    assert (five, fifteen) == pytest.approx((3 * (1 - exp(-1 / 5)), 3 * (1 - exp(-1 / 15))))


def test_offline_cpu_counters_pause() -> None:
    four = kernel(4000, 4).advanced(Seconds(10))
    one = four.resized(size(1000)).advanced(Seconds(20))
    assert one.counters.busy == pytest.approx((20, 10, 10, 10))
    assert one.resized(size(4000)).advanced(Seconds(21)).counters.busy == pytest.approx((21, 11, 11, 11))


def test_used_memory_returns_when_freed() -> None:
    load = Load((LoadStep(Seconds(0), Demand(0, Bytes(2 * GIB))), LoadStep(Seconds(10), Demand(0, Bytes(GIB)))))
    guest = SimulatedKernel.booted(load, size(1000, 3), CPUS).resized(size(1000, 1.5))
    assert guest.size.mem == Bytes(2 * GIB)
    assert guest.advanced(Seconds(9)).size.mem == Bytes(2 * GIB)
    assert guest.advanced(Seconds(10)).size.mem == Bytes(int(1.5 * GIB))


def test_imposed_demand_replaces_load() -> None:
    pressed = kernel(4000, 1).under(Demand(3, Bytes(GIB)))
    busy = pressed.advanced(Seconds(10))
    assert sum(busy.counters.busy) == pytest.approx(30)
    assert busy.under(None).demand == Demand(1, Bytes(GIB // 4))


sizes = st.integers(250, CPUS * 1000)
loads = st.lists(st.floats(0, 8), min_size=1, max_size=5).map(
    lambda demands: Load([LoadStep(Seconds(7.0 * n), Demand(cpu, Bytes(GIB))) for n, cpu in enumerate(demands)], None)
)


@given(loads, sizes, st.floats(0, 50), st.floats(0, 50))
def test_when_one_looks_makes_no_difference(load: Load, cpu: int, first: float, more: float) -> None:
    booted = SimulatedKernel.booted(load, size(cpu), CPUS)
    at_once = booted.advanced(Seconds(first + more)).counters
    in_two = booted.advanced(Seconds(first)).advanced(Seconds(first + more)).counters
    assert in_two.busy == pytest.approx(at_once.busy)
    assert in_two.load == pytest.approx(at_once.load)
    assert in_two.cpu_waiting == pytest.approx(at_once.cpu_waiting)


@given(loads, sizes, st.floats(0, 100))
def test_cpu_use_is_bounded_and_consistent(load: Load, cpu: int, span: float) -> None:
    counters = SimulatedKernel.booted(load, size(cpu), CPUS).advanced(Seconds(span)).counters
    assert sum(counters.busy) <= cpu / 1000 * span + 1e-6
    online = MilliCpu(cpu).whole_cpus
    assert [b + i for b, i in zip(counters.busy, counters.idle, strict=True)] == pytest.approx(
        [span] * online + [0.0] * (CPUS - online), abs=1e-6
    )


@given(st.floats(0, 8), sizes, st.integers(1, 1000))
def test_more_cpu_never_means_more_waiting(demand: float, cpu: int, more: int) -> None:
    less = kernel(cpu, demand).advanced(Seconds(10)).counters.cpu_waiting
    assert kernel(cpu + more, demand).advanced(Seconds(10)).counters.cpu_waiting <= less
