"""A planning round runs in steps, so that agents and kube-scheduler are answered in between."""

from __future__ import annotations

from dataclasses import replace

import pytest

from protocol.units import Seconds
from scheduler_plugin.ledger.events import NodeGone, PodGone
from scheduler_plugin.planner import planner as planner_module
from scheduler_plugin.planner.planner import PlanSteps, run_steps
from scheduler_plugin.planner.victims import PlanningTime
from tests.scheduler_plugin.planner.planner_fixture import RANKING, WALL, PlannerFixture, node


def two_full_nodes() -> PlannerFixture:
    """n1 and n2 are above their watermarks, n3 is empty."""
    fixture = PlannerFixture(node("n1"), node("n2"), node("n3", 20))
    for of, on in (("a", "n1"), ("b", "n1"), ("c", "n2"), ("d", "n2")):
        fixture.add(of, on, 4)
    fixture.plan()
    fixture.now += fixture.policy.settle  # type: ignore[assignment] # an instant and a span are an instant
    return fixture


def look(fixture: PlannerFixture) -> PlanSteps:
    return fixture.planner.plan(fixture.ledger, fixture.policy, RANKING, PlanningTime(fixture.now, WALL), min)


def test_each_node_is_a_step() -> None:
    fixture = two_full_nodes()
    assert len(list(look(fixture))) == 2
    assert [move.source for move in run_steps(look(fixture)).moves] == ["n1"]


def test_few_nodes_are_asked_in_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Even if no VM has to leave any of them yet; all nodes are covered in the end."""
    monkeypatch.setattr(planner_module, "NODES_PER_STEP", 1)
    fixture = two_full_nodes()
    fixture.policy = replace(fixture.policy, settle=Seconds(20.0))
    assert len(list(look(fixture))) == 2
    fixture.now += 20.0  # type: ignore[assignment] # an instant and a span are an instant
    assert len(list(look(fixture))) == 4
    assert [move.source for move in run_steps(look(fixture)).moves] == ["n1"]


def test_the_cluster_may_change_between_steps() -> None:
    fixture = two_full_nodes()
    steps = look(fixture)
    next(steps)
    for of in ("a", "b"):
        fixture.fleet.apply(PodGone(f"uid-{of}"))
    fixture.fleet.apply(NodeGone("n1"))
    plan = run_steps(steps)
    assert [move.source for move in plan.moves] == ["n2"]
    assert plan.stuck[0].why == "no VM is on it"
