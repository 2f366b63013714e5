"""Weights by replica count (S1.5-S1.7): the weight that applies, and its effect on a proposal."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from fractions import Fraction

import pytest

from protocol.units import Seconds
from scheduler_plugin.groups.core.hvpa.modes import effective_weight, stages, vpa_weight, weighted_replicas
from scheduler_plugin.groups.core.hvpa.spec import (
    AxisRules,
    DirectionRules,
    HvpaMode,
    Interval,
    ScalingTimes,
    UpdateMode,
)
from scheduler_plugin.groups.core.workload import (
    NOTHING,
    ReplicaBounds,
    Rule,
    SizeBounds,
    SizedContainer,
    WithheldChange,
    Workload,
)
from tests.scheduler_plugin.groups.core.hvpa.stories import (
    NOON,
    ONE_TO_TEN,
    decided,
    out_of_memory,
    requests,
    running,
    sized,
    spec_for,
    wanted,
)

HALF = Fraction(1, 2)


def intervals(*rows: tuple[float, int | None, int | None]) -> tuple[Interval, ...]:
    return tuple(Interval(Fraction(str(weight)), start, last) for weight, start, last in rows)


def weight(rows: tuple[Interval, ...], current: int, desired: int | None = None) -> float:
    return float(vpa_weight(rows, ONE_TO_TEN, current, current if desired is None else desired))


def test_the_first_interval_that_contains_the_count_wins() -> None:
    overlapping = intervals((0.2, 1, 5), (0.8, 3, 10))
    assert [weight(overlapping, count) for count in (1, 3, 5, 6)] == [0.2, 0.2, 0.2, 0.8]


def test_count_in_gap_takes_nearest_interval() -> None:
    gap = intervals((0.2, 2, 3), (0.8, 7, 8))
    assert [weight(gap, count) for count in (1, 4, 5, 6, 10)] == [0.2, 0.2, 0.2, 0.8, 0.8]


def test_a_missing_end_is_that_of_the_replicas() -> None:
    open_ended = intervals((0.2, None, 3), (0.8, 4, None))
    assert [weight(open_ended, count) for count in (1, 3, 4, 10)] == [0.2, 0.2, 0.8, 0.8]


def test_without_intervals_sizes_have_no_weight() -> None:
    assert weight((), 3) == 0


@pytest.mark.parametrize(
    ("current", "desired", "expected"),
    [(4, 4, 1), (4, 5, 0.3), (4, 3, 0.6), (1, 2, 0.6), (8, 9, 0.3)],
)
def test_replica_wish_leaves_weight_one(current: int, desired: int, expected: float) -> None:
    rows = intervals((0.6, 1, 3), (1, 4, 4), (1, 5, 6), (0.3, 7, 10))
    assert weight(rows, current, desired) == expected


def test_weight_1_stays_where_no_interval_leads_further() -> None:
    rows = intervals((0.6, 1, 3), (1, 4, 10))
    assert [weight(rows, 4, 5), weight(rows, 4, 3), weight(intervals((1, 1, 10)), 4, 3)] == [1, 0.6, 1]


@pytest.mark.parametrize(
    ("ends", "expected"),
    [
        ((3, 7), [(0.1, 1, 2), (0.5, 3, 7), (0.9, 8, 10)]),
        ((1, 4), [(0.1, 1, 1), (0.5, 1, 4), (0.9, 5, 10)]),
        ((3, None), [(0.1, 1, 2), (0.5, 3, None)]),
        ((None, 7), [(0.5, None, 7), (0.9, 8, 10)]),
        ((None, None), [(0.5, None, None)]),
        ((3, 10), [(0.1, 1, 2), (0.5, 3, 10)]),
    ],
)
def test_three_stages_are_three_intervals(
    ends: tuple[int | None, int | None], expected: list[tuple[float, int | None, int | None]]
) -> None:
    found = stages(ONE_TO_TEN, *ends, [Fraction("0.1"), HALF, Fraction("0.9")])
    assert found == intervals(*expected)


@pytest.mark.parametrize(
    ("current", "growing", "expected"), [(9, True, 0.5), (10, True, 1), (11, True, 1), (10, False, 0.5)]
)
def test_at_max_replicas_only_growth_has_weight_1(current: int, growing: bool, expected: float) -> None:
    assert effective_weight(HALF, current, ONE_TO_TEN, growing) == expected


@pytest.mark.parametrize(
    ("current", "desired", "expected"),
    [(2, 3, 3), (2, 1, 1), (5, 4, 4), (3, 10, 7), (10, 3, 6), (4, 4, 4)],
)
def test_replicas_are_rounded_away_from_where_they_are(current: int, desired: int, expected: int) -> None:
    assert weighted_replicas(current, desired, HALF) == expected


def test_weight_splits_both_axes() -> None:
    spec = replace(spec_for(HvpaMode.WEIGHT_BASED), intervals=intervals((0.25, 1, 10)))
    decision = decided(spec, running(4, sized(1000, 3000)), wanted(8, sized(2000, 1001)))
    assert (decision.replicas, requests(decision)) == (
        7,
        sized(1250).over(sized(memory=2500)).with_value("memory", 2_500_250_000),
    )
    assert decision.explanation == (
        "replicas: 4 to 7 of 8 (weight 0.75)",
        "app/cpu: 1 to 1250m of 2 (weight 0.25)",
        "app/memory: 3000000000 to 2500250000 of 1001000000 (weight 0.25)",
    )


def test_weight_extremes() -> None:
    vertical = replace(spec_for(HvpaMode.WEIGHT_BASED), intervals=intervals((1, 1, 10)))
    decision = decided(vertical, running(4, sized(1000)), wanted(8, sized(2000)))
    assert (decision.replicas, requests(decision)) == (None, sized(2000))
    assert decision.withheld == (WithheldChange("replicas", 8, 4, Rule.WEIGHT, "weight 0"),)


def test_maximum_size_frees_replicas() -> None:
    """Only more replicas could carry the load: the interval must not keep their number forever."""
    spec = replace(spec_for(HvpaMode.WEIGHT_BASED, sized(500), sized(2000)), intervals=intervals((1, 1, 10)))
    up = decided(spec, running(4, sized(2000)), wanted(8, sized(2000), uncapped=sized(3000)))
    down = decided(spec, running(4, sized(500)), wanted(2, sized(500), uncapped=sized(100)))
    against = decided(spec, running(4, sized(2000)), wanted(2, sized(2000), uncapped=sized(3000)))
    assert (up.replicas, down.replicas, against.replicas) == (8, 2, None)
    assert [kept.rule for kept in up.withheld] == [Rule.BOUNDS]


@pytest.mark.parametrize(
    ("rules", "rule"),
    [
        (DirectionRules(UpdateMode.OFF), Rule.UPDATE_MODE),
        (DirectionRules(UpdateMode.MAINTENANCE_WINDOW), Rule.MAINTENANCE_WINDOW),
        (DirectionRules(delay=Seconds(86_400.0)), Rule.DELAY),
    ],
)
def test_waiting_replica_wish_does_not_starve_sizes(rules: DirectionRules, rule: Rule) -> None:
    """It would swap weight 1 for its neighbour's 0: while it waits, sizes keep their own."""
    only_sizes_at_four = replace(spec_for(HvpaMode.WEIGHT_BASED), intervals=intervals((0, 1, 3), (1, 4, 6), (0, 7, 10)))
    held = replace(only_sizes_at_four, horizontal=AxisRules(rules, rules))
    an_hour_ago = ScalingTimes(NOON - timedelta(hours=1), NOON - timedelta(hours=1))
    for desired in (3, 7):
        decision = decided(held, running(4, sized(1000)), wanted(desired, sized(3000)), an_hour_ago)
        assert (decision.replicas, requests(decision)) == (None, sized(3000))
        assert [(kept.subject, kept.rule) for kept in decision.withheld] == [("replicas", rule)]
        goes = decided(only_sizes_at_four, running(4, sized(1000)), wanted(desired, sized(3000)), an_hour_ago)
        assert (goes.replicas, requests(goes)) == (desired, NOTHING)


def test_delays_hold_at_max_replicas() -> None:
    spec = replace(spec_for(HvpaMode.WEIGHT_BASED), intervals=intervals((0, 1, 10)))
    small = decided(spec, running(10, sized(1000)), wanted(10, sized(1100)))
    assert [kept.rule for kept in small.withheld] == [Rule.MIN_CHANGE]


def test_oom_killed_container_grows_at_once() -> None:
    spec = replace(spec_for(HvpaMode.WEIGHT_BASED), intervals=intervals((0, 1, 10)))
    workload = running(4, sized(1000, 100))
    decision = decided(spec, out_of_memory(workload), wanted(4, sized(2000, 110)))
    assert requests(decision) == sized(memory=110)
    assert [kept.subject for kept in decision.withheld] == ["app/cpu"]
    less = decided(spec, out_of_memory(workload), wanted(4, sized(memory=90)))
    assert requests(less) == NOTHING
    assert requests(decided(spec, out_of_memory(workload, "proxy"), wanted(4, sized(memory=110)))) == NOTHING


def test_oom_grows_memory_in_any_mode() -> None:
    workload = running(4, sized(1000, 100))
    decision = decided(spec_for(HvpaMode.HPA_PREFERRED), out_of_memory(workload), wanted(5, sized(2000, 110)))
    assert (decision.replicas, requests(decision)) == (5, sized(memory=110))


def test_out_of_bounds_replicas_return() -> None:
    spec = replace(spec_for(HvpaMode.WEIGHT_BASED), replicas=ReplicaBounds(2, 6), intervals=intervals((1, 2, 6)))
    assert decided(spec, running(9, sized(1000)), wanted(9)).replicas == 6
    assert decided(spec, running(1, sized(1000)), wanted(1)).replicas == 2


def test_limits_follow_requests() -> None:
    spec = replace(spec_for(HvpaMode.WEIGHT_BASED), intervals=intervals((0.5, 1, 10)))
    side = SizedContainer("proxy", sized(100))
    workload = Workload(4, 4, (SizedContainer("app", sized(1000, 1000), sized(2000, 1000)), side))
    decision = decided(spec, workload, wanted(4, sized(2000, 2000)))
    assert decision.containers == (SizedContainer("app", sized(1500, 1500), sized(3000, 1500)),)


def test_bounds_never_leave_a_target_outside_of_them() -> None:
    assert SizeBounds(sized(500), sized(400)).clamp("cpu", 100) == 500
