"""The cost of an interval with too little memory: which stalls are blamed on rereading, and which are not."""

from __future__ import annotations

import pytest

from agent.core.guest import GuestSample, ObservedSample, Rates, rates
from agent.core.memory.rereading import NO_COST, Cost, recent
from agent.core.memory.rereading import cost as cost_above
from protocol.units import Bytes, Instant, Seconds

MIB = 1024.0**2
TRICKLE = Bytes(256 * 1024)


def cost(seen: Rates) -> Cost | None:
    return cost_above(seen, TRICKLE)


def over(
    mem_stall: float | None = None,
    io_stall: float | None = None,
    refaulted: float | None = None,
    read: float | None = None,
    written: float | None = None,
) -> Rates:
    """Two seconds, of which programs worked half a core."""
    return Rates(1.0, 0.25, 0.0, 0.25, 0.0, mem_stall, io_stall, refaulted, read, written, span=2.0)


def test_no_cost_without_interval_or_metrics() -> None:
    assert cost(Rates()) is None
    assert cost(Rates(busy=1.0, span=1.0)) is None


def test_pressure_on_memory_alone_is_a_cost() -> None:
    assert cost(over(mem_stall=0.25)) == Cost(seconds=2.0, stalled=0.5, waited=0.5, work=1.0)


def test_disk_waits_count_by_share_of_rereading() -> None:
    found = cost(over(io_stall=0.8, refaulted=2 * MIB, read=3 * MIB, written=MIB))
    assert found is not None
    assert (found.reread, found.read, found.stalled) == (4 * MIB, 6 * MIB, 0.8)
    assert found.waited == pytest.approx(1.2)


def test_a_trickle_of_rereading_costs_nothing() -> None:
    found = cost(over(io_stall=0.8, refaulted=TRICKLE.value / 2, read=TRICKLE.value / 2))
    assert found is not None
    assert (found.reread, found.stalled) == (0.0, 0.0)
    assert found.waited == pytest.approx(1.6)


def test_without_refaults_all_reads_count() -> None:
    found = cost(over(io_stall=0.5, read=MIB))
    assert found is not None
    assert found.reread == 2 * MIB
    assert found.stalled == pytest.approx(1.0)


def test_waiting_is_capped_at_the_interval() -> None:
    found = cost(over(mem_stall=0.9, io_stall=0.9, refaulted=MIB, read=MIB))
    assert found is not None
    assert (found.stalled, found.waited) == (2.0, 2.0)


def test_rates_of_a_cost_without_time_are_nothing() -> None:
    assert (NO_COST.reread_rate, NO_COST.read_rate, NO_COST.stall, NO_COST.cores, NO_COST.effort) == (0, 0, 0, 0, 0)
    assert NO_COST.loss(NO_COST) == 0.0
    assert NO_COST.at_effort_of(Cost(seconds=1.0)) == NO_COST


def test_costs_are_compared_for_the_same_work() -> None:
    before = Cost(seconds=10.0, read=100.0, waited=5.0, work=9.9)
    now = Cost(seconds=5.0, work=4.95)
    assert before.at_effort_of(now) == Cost(5.0, 0.0, 50.0, 0.0, 2.5, 4.95)
    assert before.loss(before) == pytest.approx(0.5), "nothing is reread, so waiting is what counts"
    hurt = Cost(seconds=10.0, read=1e8, reread=1e8, work=9.9)
    assert hurt.loss(hurt) == pytest.approx(1e7)


def test_what_is_recent_fades() -> None:
    seen = NO_COST
    for _ in range(600):
        seen = recent(seen, Cost(seconds=1.0, stalled=0.5), Seconds(60.0))
    assert seen.stall == pytest.approx(0.5)
    assert seen.seconds == pytest.approx(60.5, abs=0.1)


def test_falling_or_missing_counters_give_no_cost() -> None:
    def at(second: float, refaulted: float | None) -> ObservedSample:
        return ObservedSample(GuestSample(refaulted=refaulted, read=refaulted, mem_free=Bytes(1)), Instant(second))

    assert rates(at(0.0, 5.0), at(1.0, 4.0)).refaulted is None
    assert rates(at(0.0, None), at(1.0, 4.0)).read is None
    assert rates(at(0.0, 2.0), at(2.0, 4.0)).refaulted == 1.0
