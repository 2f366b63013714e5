"""Verdicts on memory trials: a shrink that hurts, a growth that pays off, and neither."""

from __future__ import annotations

from dataclasses import replace

import pytest

from agent.core.memory.rereading import NO_COST, Cost
from agent.core.memory.trials import Filled, Filling, Growing, Growth, Observation, Shrink, exceeds_limits
from agent.core.memory.working_set import FailedGrowth, WorkingSetFloor, next_try, tries_before
from agent.core.policy import CachePolicy
from protocol.units import Bytes, Instant, Seconds

GIB = 1024**3
POLICY = CachePolicy()


def gib(count: float) -> Bytes:
    return Bytes(int(count * GIB))


def spent(seconds: float, reread: float = 0.0, stall: float = 0.0, cores: float = 1.0) -> Cost:
    """So many seconds in which this many GiB were reread, and tasks waited for a share of the time."""
    return Cost(seconds, reread * GIB, reread * GIB, stall * seconds, stall * seconds, cores * seconds)


@pytest.mark.parametrize(
    ("baseline", "cost", "verdict"),
    [
        (spent(60), spent(30), None),
        (spent(60), spent(180), Observation.HARMLESS),
        (spent(60), spent(10, reread=0.3), Observation.HURTS),
        (spent(60), spent(180, reread=0.2), Observation.HARMLESS),
        (spent(60), spent(30, stall=0.31), Observation.HURTS),
        (spent(60), spent(180, stall=0.04), Observation.HARMLESS),
        (spent(60, reread=6, stall=0.5), spent(180, reread=18, stall=0.5), Observation.HARMLESS),
        (spent(60, reread=6, stall=0.5), spent(180, reread=18, stall=0.5, cores=0.5), Observation.HURTS),
        (NO_COST, spent(10, reread=0.3), Observation.HURTS),
    ],
)
def test_shrink_is_bad_above_cost_budget(baseline: Cost, cost: Cost, verdict: Observation | None) -> None:
    trial = Shrink(gib(5), gib(4), Instant(0.0), baseline, cost)
    assert trial.observation(POLICY) is verdict


def test_first_reads_turned_rereads_spare_shrink() -> None:
    baseline = Cost(60.0, 0.0, 6.0 * GIB, 0.0, 30.0, 60.0)
    trial = Shrink(gib(5), gib(4), Instant(0.0), baseline, spent(180, reread=18, stall=0.5))
    assert trial.observation(POLICY) is Observation.HARMLESS


def test_unpermitted_growth_ends_without_rereading() -> None:
    trial = Growing(Growth(gib(4), gib(6), spent(60, stall=0.5)))
    assert trial.observation(spent(60, stall=0.5), POLICY) is None
    assert trial.observation(spent(60), POLICY) is Observation.RELIEVED


def grown(size: float, maximum: float, after: Cost, free: float = 0.0) -> Observation | None:
    """The verdict on a growth from 4 GiB, where a minute's work had cost 6 GiB."""
    trial = Filling(Growth(gib(4), gib(size), spent(60, reread=6, stall=0.5)), gib(size)).after_interval(
        spent(10), gib(free), POLICY
    )
    if isinstance(trial, Filling):
        trial = trial.after_interval(spent(360), gib(free), POLICY)
    assert isinstance(trial, Filled)
    return replace(trial, cost=after).observation(after, gib(free), gib(maximum), POLICY)


@pytest.mark.parametrize(
    ("size", "maximum", "after", "verdict"),
    [
        (6, 8, spent(60), Observation.HELPS),
        (6, 8, spent(20, reread=2, stall=0.5), None),
        (6, 8, spent(60, reread=4, stall=0.4), Observation.HELPS),
        (6, 8, spent(60, reread=5.5, stall=0.5), Observation.USELESS),
        (6, 32, spent(60, reread=5.9, stall=0.5), Observation.TOO_SMALL),
        (6, 32, spent(60, reread=5.5, stall=0.5), Observation.HELPS),
        (8, 8, spent(60, reread=5.9, stall=0.5), Observation.USELESS),
    ],
)
def test_growth_is_good_if_gain_is_proportional(
    size: float, maximum: float, after: Cost, verdict: Observation | None
) -> None:
    assert grown(size, maximum, after) is verdict


def test_growth_is_judged_by_filled_part() -> None:
    assert grown(6, 8, spent(60, reread=5.5, stall=0.5), free=1.9) is Observation.HELPS


def test_a_growth_without_a_cost_before_brought_nothing() -> None:
    assert Filled(Growth(gib(4), gib(6), NO_COST), gib(6)).drop == 0.0


def test_guest_suffers_above_stall_or_turnover() -> None:
    assert not exceeds_limits(spent(9, stall=1.0), gib(4), POLICY)
    assert not exceeds_limits(spent(60, stall=0.05), gib(4), POLICY)
    assert exceeds_limits(spent(60, stall=0.05), gib(4), POLICY, 0.5)
    assert exceeds_limits(spent(60, stall=0.11), gib(4), POLICY)
    assert not exceeds_limits(spent(60, reread=0.3), gib(4), POLICY)
    assert exceeds_limits(spent(60, reread=0.34), gib(4), POLICY)


def test_failures_double_the_wait_until_forgotten() -> None:
    hours = [next_try(tries, Instant(0.0), POLICY) / 3600 for tries in (1, 2, 3, 4, 5, 99)]
    assert hours == [1, 2, 4, 8, 8, 8]
    learned = WorkingSetFloor(gib(4), gib(3), Instant(10.0), 3, Instant(20.0), NO_COST, 1.0, Bytes(0))
    useless = FailedGrowth(gib(4), gib(6), Instant(10.0), 2, Instant(20.0), 0.0)
    day = Seconds(86_400.0)
    assert [tries_before(each, Instant(86_410.0), day) for each in (None, learned, useless)] == [0, 3, 2]
    assert [tries_before(each, Instant(86_411.0), day) for each in (None, learned, useless)] == [0, 0, 0]
