"""The horizontal recommender: HPA's arithmetic, with its caution about what is not measured or not ready."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from scheduler_plugin.groups.core.recommender.horizontal import (
    DesiredCounts,
    HorizontalRules,
    MetricTarget,
    ReplicaUse,
    average_value_replicas,
    is_tolerated,
    recommended,
    utilization_replicas,
)
from scheduler_plugin.groups.core.workload import HorizontalRecommendation, ReplicaBounds

T0 = 1_767_225_600.0


def replicas(*used: int | None, unready: Sequence[int] = ()) -> list[ReplicaUse]:
    return [ReplicaUse(one, 1000, number not in unready) for number, one in enumerate(used)]


@pytest.mark.parametrize(
    ("current", "found", "target", "expected"),
    [
        (5, replicas(100, 300, 500, 250, 250), 50, (3, 28)),
        (3, replicas(300, 500, 700), 30, (5, 50)),
        (3, replicas(300, 500, 700, unready=[0]), 30, (4, 60)),
        (3, replicas(400, 500, 700, unready=[1, 2]), 30, (3, 40)),
        (2, replicas(1000, None), 100, (2, 100)),
        (2, replicas(1900, None), 100, (2, 190)),
        (2, replicas(600, None), 100, (2, 60)),
        (4, replicas(100, 100, None, None), 100, (3, 10)),
        (3, replicas(900, 900, None, unready=[]), 30, (6, 90)),
        (2, replicas(770, 770), 70, (2, 77)),
        (2, replicas(780, 780), 70, (3, 78)),
    ],
)
def test_utilization_is_measured_against_requests(
    current: int, found: list[ReplicaUse], target: int, expected: tuple[int, int]
) -> None:
    assert utilization_replicas(current, found, target) == expected


@pytest.mark.parametrize(
    ("current", "found", "expected"),
    [
        (2, replicas(1500, 1500), 3),
        (4, replicas(100, 100, 100, 100), 1),
        (3, replicas(1000, 1000, None), 3),
        (3, replicas(200, 200, None), 2),
        (3, replicas(4000, 4000, None), 8),
        (8, replicas(2000, 1500, unready=[1]), 8),
        (1, replicas(200, 200, None, None, None), 1),
        (3, replicas(None, None, None), None),
        (3, replicas(500, unready=[0]), None),
    ],
)
def test_an_average_value_is_measured_against_itself(
    current: int, found: list[ReplicaUse], expected: int | None
) -> None:
    assert average_value_replicas(current, found, 1000) == expected


def test_average_value_mean_is_whole() -> None:
    assert average_value_replicas(3, replicas(340, 350, 350), 80) == 13


def test_without_requests_there_is_no_utilization() -> None:
    assert utilization_replicas(1, [ReplicaUse(100, 0)], 50) is None


@pytest.mark.parametrize(("ratio", "tolerated"), [(1.1, True), (0.9, True), (1.11, False), (0.89, False)])
def test_within_ten_per_cent_nothing_changes(ratio: float, tolerated: bool) -> None:
    assert is_tolerated(ratio) is tolerated


def test_scale_in_waits_five_minutes() -> None:
    memory = DesiredCounts()
    story = [(0, 8), (60, 3), (120, 5), (300, 3), (301, 3), (420, 3), (421, 3)]
    found = []
    for after, desired in story:
        count, memory = memory.stabilized(desired, 8, T0 + after)
        found.append(count)
    assert found == [8, 8, 8, 5, 5, 3, 3]


def test_the_past_never_makes_more_than_there_are() -> None:
    count, memory = DesiredCounts(((T0 - 10, 9),)).stabilized(2, 4, T0)
    assert (count, memory.entries) == (4, ((T0 - 10, 9), (T0, 2)))


RULES = HorizontalRules(ReplicaBounds(2, 6), (MetricTarget(average_value=1000), MetricTarget(utilization=50)))


def of_request(request: int, *used: int | None) -> list[ReplicaUse]:
    return [ReplicaUse(each, request) for each in used]


def wanted(desired: int, limited: bool = False) -> HorizontalRecommendation:
    return HorizontalRecommendation(desired, 2, 6, limited)


@pytest.mark.parametrize(
    ("measured", "expected"),
    [
        (of_request(10_000, 1300, 1300, 1300), wanted(4)),
        (of_request(1000, 900, 900, 900), wanted(6)),
        (of_request(1000, 100, 100, 100), wanted(2)),
        (of_request(1000, 9000, 9000, 9000), wanted(6, limited=True)),
        (of_request(0, 100, 100, 100), wanted(3)),
        (of_request(1000, None, None, None), None),
    ],
)
def test_greatest_metric_wins(measured: list[ReplicaUse], expected: HorizontalRecommendation | None) -> None:
    assert recommended(RULES, 3, measured, DesiredCounts(), T0)[0] == expected


def test_a_metric_without_a_target_recommends_nothing() -> None:
    rules = HorizontalRules(ReplicaBounds(1, 9), (MetricTarget(),))
    memory = DesiredCounts(((T0, 4),))
    assert recommended(rules, 3, replicas(1), memory, T0) == (None, memory)
