"""A real VPA recommends by the past: after scaling, its target speaks of other replicas than there are.

The VPA here is its rule alone: the 90th percentile of what one replica used in each hour, with a half-life of a day.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from math import ceil

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler_plugin.groups.core.hvpa.needs import MOST_COUNTS, remembered, target_replicas
from scheduler_plugin.groups.core.hvpa.policy import decide
from scheduler_plugin.groups.core.hvpa.spec import HvpaMode, HvpaSpec, PastReplicas, PastTarget, ScalingTimes
from scheduler_plugin.groups.core.recommender.horizontal import is_tolerated
from scheduler_plugin.groups.core.workload import (
    HorizontalRecommendation,
    Recommendations,
    ReplicaBounds,
    Resource,
    Workload,
)
from tests.examples import examples
from tests.scheduler_plugin.groups.core.hvpa.stories import NOON, running, sized, spec_for, wanted

MOST = 8000
SPEC = replace(spec_for(HvpaMode.EFFECTIVE_INTERVALS, sized(100), sized(MOST)), replicas=ReplicaBounds(1, 30))


def target(used: list[float]) -> int:
    """The 90th percentile of what was used in each hour, the last one the newest."""
    weights = {hour: 0.5 ** ((len(used) - hour) / 24) for hour in range(len(used))}
    wanted_weight, reached = 0.9 * sum(weights.values()), 0.0
    for hour in sorted(weights, key=lambda hour: used[hour]):
        reached += weights[hour]
        if reached >= wanted_weight:
            return -int(-used[hour] // 1)
    raise AssertionError


@dataclass
class Hours:
    """A group and its VPA, hour by hour: decisions are made until nothing changes any more."""

    workload: Workload
    memory: ScalingTimes
    used: list[float]
    now: datetime = NOON
    says_ratio: bool = True

    def hour(self, load: int, spec: HvpaSpec = SPEC) -> None:
        self.used.append(load / self.workload.replicas)
        for _ in range(40):
            said = self._said(load, spec)
            decision, self.memory = decide(spec, self.workload, said, self.memory, self.now)
            if not decision.changes:
                break
            self.workload = decision.applied(self.workload)
            self.workload = replace(self.workload, ready=self.workload.replicas)
            self.now += timedelta(seconds=15)
        else:
            raise AssertionError(f"still changing: {self.workload}")
        self.now += timedelta(hours=1)

    def _said(self, load: int, spec: HvpaSpec) -> Recommendations:
        said = wanted(None, sized(target(self.used)))
        ratio = load / self.capacity / 0.8
        desired = self.workload.replicas if is_tolerated(ratio) else ceil(ratio * self.workload.replicas)
        ratios: tuple[tuple[Resource, float], ...] = (("cpu", round(ratio, 2)),) if self.says_ratio else ()
        horizontal = HorizontalRecommendation(max(1, desired), 1, 30, ratios=ratios)
        # One with other metrics, for which a single replica is enough.
        return replace(
            said, horizontal=horizontal if spec.desired_by_utilization else HorizontalRecommendation(1, 1, 30)
        )

    @property
    def capacity(self) -> int:
        request = self.workload.containers[0].requests.cpu
        return self.workload.replicas * (0 if request is None else request.value)


def beginning(replicas: int, load: int) -> Hours:
    """A day of that load on this many replicas."""
    each = max(100, min(MOST, -(-load // replicas)))
    return Hours(running(replicas, sized(each)), ScalingTimes(), [load / replicas] * 24)


def fewest(load: int) -> int:
    return -(-load // MOST)


@given(st.integers(1, 12), st.integers(1000, 90_000))
@settings(max_examples=examples(12, 80))
def test_stale_target_does_not_run_away(replicas: int, load: int) -> None:
    """A constant load: never more replicas than there were or than it takes, and never less than it needs."""
    hours = beginning(replicas, load)
    enough = hours.capacity >= load
    for _ in range(100):
        hours.hour(load)
        assert hours.workload.replicas <= max(replicas, fewest(load))
        assert not enough or hours.capacity >= load - hours.workload.replicas
        enough = enough or hours.capacity >= load
    assert enough
    assert hours.workload.replicas <= max(fewest(load * 10 // 9) + 1, fewest(load))


@given(st.integers(1, 4), st.integers(2000, 30_000), st.integers(4000, 90_000), st.booleans())
@settings(max_examples=examples(12, 80))
def test_new_load_is_carried_by_hpa(replicas: int, before: int, after: int, says_ratio: bool) -> None:
    """A target that does not rise may hide it: the HPA of 80 % does not, and adds no more than a replica to spare."""
    by_cpu: tuple[Resource, ...] = ("cpu",)
    spec = replace(SPEC, desired_by_utilization=by_cpu)
    hours = replace(beginning(replicas, before), says_ratio=says_ratio)
    for _ in range(20):
        hours.hour(before, spec)
    for _ in range(12):
        hours.hour(after, spec)
    assert hours.capacity >= after * 0.9
    assert hours.workload.replicas <= fewest(max(before, after) * 10 // 7) + 1


def test_scaling_out_once_is_scaling_out_once() -> None:
    """18 vCPUs on one replica of at most 8: three are enough, though the VPA still recommends 18 for each."""
    hours = beginning(1, 18_000)
    counts = []
    for _ in range(100):
        hours.hour(18_000)
        counts.append(hours.workload.replicas)
    assert set(counts) == {3}
    assert hours.workload == running(3, sized(6000))


@pytest.mark.parametrize(
    ("old", "now", "expected"),
    [
        (None, PastTarget("app", "cpu", 900, 2), (900, 2)),
        (PastTarget("app", "cpu", 900, 1), PastTarget("app", "cpu", 900, 2), (900, 1)),
        (PastTarget("app", "cpu", 900, 1), PastTarget("app", "cpu", 880, 2), (900, 1)),
        (PastTarget("app", "cpu", 900, 1), PastTarget("app", "cpu", 470, 2), (470, 2)),
        (PastTarget("app", "cpu", 900, 1), PastTarget("app", "cpu", 901, 2), (901, 2)),
        (PastTarget("app", "cpu", 900, 3), PastTarget("app", "cpu", 900, 2), (900, 2)),
    ],
)
def test_target_is_of_matching_replicas(old: PastTarget | None, now: PastTarget, expected: tuple[int, int]) -> None:
    memory = ScalingTimes(targets=() if old is None else (old,))
    found = remembered(memory, SPEC, running(now.replicas), wanted(None, sized(now.target)), NOON)
    (seen,) = found.targets
    assert (seen.target, seen.replicas) == expected


def test_peak_replicas_are_kept_four_hours() -> None:
    memory, story = ScalingTimes(), [(0, 10), (1, 8), (2, 9), (3, 5), (5, 5), (6, 5), (7, 5), (9, 20)]
    found = []
    for hour, count in story:
        memory = remembered(memory, SPEC, running(count), wanted(), NOON + timedelta(hours=hour))
        found.append([each.replicas for each in memory.counts])
    assert found == [[10], [10, 8], [10, 9], [10, 9, 5], [10, 9, 5], [9, 5], [5], [20]]


def test_only_so_many_counts_are_remembered() -> None:
    memory = ScalingTimes()
    for minute in range(50):
        memory = remembered(memory, SPEC, running(100 - minute), wanted(), NOON + timedelta(minutes=minute))
    assert len(memory.counts) == MOST_COUNTS
    assert (memory.counts[0].replicas, memory.counts[-1].replicas) == (100, 51)


def test_without_a_vpa_its_targets_are_remembered() -> None:
    memory = ScalingTimes(
        targets=(PastTarget("app", "cpu", 900, 1),), counts=(PastReplicas(NOON, 4), PastReplicas(NOON, 2))
    )
    assert remembered(memory, SPEC, running(2), wanted(), NOON).targets == memory.targets
    assert target_replicas(memory, "app", "cpu", 2) == (1, 4)
    assert target_replicas(memory, "app", "memory", 3) == (3, 4)
    assert target_replicas(ScalingTimes(), "app", "cpu", 3) == (3, 3)


def test_counts_of_tomorrow_are_forgotten() -> None:
    """A count that ended at a time ahead proves nothing: it spoke of a target for as long as it lay ahead."""
    ahead = NOON + timedelta(days=30)
    memory = ScalingTimes(counts=(PastReplicas(ahead, 9), PastReplicas(ahead, 4)))
    after = remembered(memory, SPEC, running(4), wanted(), NOON)
    assert [each.replicas for each in after.counts] == [4]
