"""The words that all group policies share."""

from __future__ import annotations

import pytest

from protocol.units import Bytes, MilliCpu
from scheduler_plugin.groups.core.workload import (
    NOTHING,
    ContainerRecommendation,
    ReplicaBounds,
    ResourceList,
    SizeBounds,
    SizedContainer,
    VerticalRecommendation,
    Workload,
    WorkloadDecision,
)

APP = SizedContainer("app", ResourceList(MilliCpu(500), Bytes(100)), ResourceList(memory=Bytes(200)))


def test_a_resource_list_knows_what_it_gives() -> None:
    both, only_memory = ResourceList(MilliCpu(1), Bytes(2)), ResourceList(memory=Bytes(2))
    assert [list(both), list(only_memory), list(NOTHING)] == [
        [("cpu", MilliCpu(1)), ("memory", Bytes(2))],
        [("memory", Bytes(2))],
        [],
    ]
    assert [bool(both), bool(ResourceList(MilliCpu(0))), bool(only_memory), bool(NOTHING)] == [True, True, True, False]


def test_resource_list_uses_one_rule() -> None:
    both = ResourceList(MilliCpu(1), Bytes(2))
    assert both.map(lambda _, amount: amount.value * 10) == ResourceList(MilliCpu(10), Bytes(20))
    assert both.map(lambda resource, amount: amount.value if resource == "cpu" else None) == ResourceList(MilliCpu(1))
    assert both.with_value("cpu", None).with_value("memory", 5) == ResourceList(memory=Bytes(5))


def test_what_is_given_goes_over_what_is_not() -> None:
    assert ResourceList(memory=Bytes(9)).over(ResourceList(MilliCpu(1), Bytes(2))) == ResourceList(
        MilliCpu(1), Bytes(9)
    )
    assert ResourceList(MilliCpu(7)).over(NOTHING) == ResourceList(MilliCpu(7))


@pytest.mark.parametrize(
    ("minimum", "maximum", "clamped"),
    [
        (None, None, [1, 50, 99]),
        (10, None, [10, 50, 99]),
        (None, 60, [1, 50, 60]),
        (10, 60, [10, 50, 60]),
        (70, 60, [70, 70, 70]),
    ],
)
def test_lower_bound_wins_a_conflict(minimum: int | None, maximum: int | None, clamped: list[int]) -> None:
    bounds = SizeBounds(NOTHING.with_value("cpu", minimum), NOTHING.with_value("cpu", maximum))
    assert [bounds.clamp("cpu", value) for value in (1, 50, 99)] == clamped
    assert bounds.clamp("memory", 1) == 1


def test_replica_bounds_hold_a_number() -> None:
    assert [ReplicaBounds(2, 4).clamp(wanted) for wanted in (0, 3, 9)] == [2, 3, 4]


def test_containers_and_their_recommendations_are_found_by_name() -> None:
    recommended = ContainerRecommendation("app", ResourceList(MilliCpu(700)))
    assert (Workload(1, 1, (APP,)).container("app"), Workload(1).container("app")) == (APP, None)
    assert VerticalRecommendation((recommended,)).container("app") == recommended
    assert VerticalRecommendation().container("app") is None


def test_a_decision_writes_only_what_it_names() -> None:
    workload = Workload(2, 1, (APP, SizedContainer("proxy")))
    decision = WorkloadDecision(replicas=3, containers=(SizedContainer("app", ResourceList(MilliCpu(700))),))
    assert decision.applied(workload) == Workload(
        3,
        1,
        (
            SizedContainer("app", ResourceList(MilliCpu(700), Bytes(100)), ResourceList(memory=Bytes(200))),
            SizedContainer("proxy"),
        ),
    )
    assert WorkloadDecision().applied(workload) == workload


@pytest.mark.parametrize(
    ("decision", "changes"),
    [(WorkloadDecision(), False), (WorkloadDecision(replicas=0), True), (WorkloadDecision(containers=(APP,)), True)],
)
def test_a_decision_knows_whether_it_changes_anything(decision: WorkloadDecision, changes: bool) -> None:
    assert decision.changes is changes
