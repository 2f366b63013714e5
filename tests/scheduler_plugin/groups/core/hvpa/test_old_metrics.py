"""Metrics of unknown age: which number of ready pods they may describe (S1.12)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime, timedelta
from fractions import Fraction
from math import ceil

import pytest

from scheduler_plugin.groups.core.hvpa.needs import remembered
from scheduler_plugin.groups.core.hvpa.old_metrics import MAX_COUNTS, OLDEST_METRICS, with_measured
from scheduler_plugin.groups.core.hvpa.policy import decide
from scheduler_plugin.groups.core.hvpa.spec import HvpaMode, PastPods, PodsMemory, ScalingTimes
from scheduler_plugin.groups.core.workload import (
    HorizontalRecommendation,
    MeasuredUse,
    Recommendations,
    ReplicaBounds,
    RunningPods,
    SizedContainer,
)
from tests.scheduler_plugin.groups.core.hvpa.stories import NOON, running, sized, spec_for

SIZES = (SizedContainer("app", sized(500)), SizedContainer("proxy"))
SPEC = spec_for(HvpaMode.EFFECTIVE_INTERVALS, sized(100), sized(4000))
MINUTE = timedelta(minutes=1)


def by_use(use: int) -> HorizontalRecommendation:
    return HorizontalRecommendation(2, 1, 10, uses=(MeasuredUse("cpu", Fraction(use)),))


def counts(looks: Iterable[tuple[int, int]]) -> list[int]:
    """The possible numbers of ready pods after looks, one per minute, at ready pods and the use of each; 0: unknown."""
    memory = ScalingTimes()
    for minute, (ready, use) in enumerate(looks):
        found = Recommendations(by_use(use) if use else None)
        workload = replace(running(ready, sized(500)), pods=RunningPods(ready, SIZES))
        memory = remembered(memory, SPEC, workload, found, NOON + minute * MINUTE)
    return [past.ready for past in memory.pods.counts]


@pytest.mark.parametrize(
    ("looks", "possible"),
    [
        ([(2, 900), (4, 900)], [2, 4]),
        ([(2, 900), (4, 900), (4, 700)], [2, 4]),
        ([(2, 900), (4, 900), (4, 600)], [4]),
        ([(2, 900), (4, 900), (4, 600), (4, 900)], [4]),
        ([(4, 900), (2, 900), (2, 1200)], [4, 2]),
        ([(4, 900), (2, 900), (2, 1300)], [2]),
        ([(2, 900), (3, 900), (4, 900), (4, 700)], [2, 4]),
        ([(2, 900), (4, 900), (2, 900)], [4, 2]),
        ([(2, 900), (0, 0), (4, 0), (4, 900)], [2, 4]),
        ([(2, 900), (4, 0), (4, 450)], [4]),
        ([(2, 0), (4, 0)], []),
        ([(2, 900), *[(4, 900)] * 11], [2, 4]),
        ([(2, 900), *[(4, 900)] * 12], [4]),
    ],
)
def test_counts_end_once_use_follows(looks: list[tuple[int, int]], possible: list[int]) -> None:
    """Two pods become four: the use of each halves, and below seven tenths it describes the four."""
    assert counts(looks) == possible


def test_use_follows_from_a_ratio_too() -> None:
    half = HorizontalRecommendation(2, 1, 10, ratios=(("cpu", 0.5),))
    (found,) = with_measured(PodsMemory((PastPods(NOON, 2, SIZES),)), PodsMemory(), half, NOON).counts
    assert (found.ready, found.use) == (2, 250)


def test_unchanged_pods_leave_the_memory_unchanged() -> None:
    memory = PodsMemory((PastPods(NOON, 2, SIZES),))
    for minute in range(3):
        memory = with_measured(memory, memory, by_use(900), NOON + minute * MINUTE)
    assert [(past.until, past.ready) for past in memory.counts] == [(NOON, 2)]


def test_many_counts_keep_the_newest() -> None:
    assert counts((number, 900) for number in range(1, 12)) == list(range(1, 12))
    memory = PodsMemory()
    for number in range(1, 40):
        present, now = PastPods(NOON, number, SIZES), NOON + number * timedelta(seconds=1)
        memory = with_measured(PodsMemory((present,)), memory, by_use(900), now)
    assert [past.ready for past in memory.counts] == list(range(40 - MAX_COUNTS, 40))


def test_counts_of_the_future_are_dropped() -> None:
    ahead: datetime = NOON + OLDEST_METRICS
    memory = PodsMemory((PastPods(ahead, 2, SIZES),))
    for ready, now in ((2, ahead), (4, ahead), (4, NOON)):
        present = PastPods(now, ready, SIZES)
        memory = with_measured(PodsMemory((present,)), memory, by_use(900), now)
    assert [past.ready for past in memory.counts] == [4]


@pytest.mark.parametrize("percent", [3, 5, 7, 10])
def test_replicas_follow_a_growing_load(percent: int) -> None:
    """The load grows so fast that the use of each pod hardly falls although there are more pods."""
    spec = replace(
        spec_for(HvpaMode.EFFECTIVE_INTERVALS, sized(100), sized(500)),
        replicas=ReplicaBounds(1, 60),
        desired_by_utilization=("cpu",),
    )
    ready, load, memory, largest = 4, 1800.0, ScalingTimes(), 0.0
    for minute in range(20):
        workload = replace(running(ready, sized(500)), pods=RunningPods(ready, SIZES[:1]))
        decision, memory = decide(
            spec, workload, Recommendations(by_use(ceil(load / ready))), memory, NOON + minute * MINUTE
        )
        ready = decision.replicas or ready
        largest = max(largest, load / ready / 500)
        load *= 1 + percent / 100
    assert largest < 1.25
