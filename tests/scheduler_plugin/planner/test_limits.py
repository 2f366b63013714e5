"""Concurrent migrations, waiting VMs, and draining of a cordoned node (S4.8)."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from fractions import Fraction

import pytest

from scheduler_plugin.constraints.model import NodeTraits
from scheduler_plugin.ledger.events import NodeGone, NodeSeen, PodGone, PodSeen, TimePassed
from scheduler_plugin.ledger.facts import MigrationFacts, MigrationPhase
from scheduler_plugin.ledger.moves import START_TIMEOUT, Move, MoveCause
from scheduler_plugin.planner import planner as planner_module
from scheduler_plugin.planner.plan import Cancel, MigrationPolicy, MovePlan, StuckNode
from scheduler_plugin.texts.explanations import NOT_READY
from tests.scheduler_plugin.ledger.fleet import amount, migration, name, plain_pod
from tests.scheduler_plugin.planner.planner_fixture import WALL, PlannerFixture, node, pressed


def crowd(nodes: int, policy: MigrationPolicy) -> PlannerFixture:
    """This many nodes, each 3 above its watermark with ten VMs, and two empty ones."""
    fixture = PlannerFixture(
        *(node(f"n{number}") for number in range(nodes)), node("t0", 100), node("t1", 100), policy=policy
    )
    for of in range(nodes):
        for number in range(10):
            fixture.add(f"v{of}{number}", f"n{of}", 1, load=float(number))
    return fixture


@pytest.mark.parametrize(
    ("policy", "leave", "enter"),
    [
        (MigrationPolicy(), 1, 1),
        (MigrationPolicy(per_cluster=Fraction(3, 5)), 1, 2),
        (MigrationPolicy(per_cluster=10), 1, 2),
        (MigrationPolicy(per_cluster=9, out_per_node=2, in_per_node=9), 2, 6),
        (MigrationPolicy(out_per_node=9, in_per_node=9, per_cluster=4), 3, 4),
        (MigrationPolicy(per_cluster=9, out_per_node=9, in_per_node=2), 3, 2),
        (MigrationPolicy(out_per_node=0), 0, 0),
    ],
)
def test_no_more_move_at_once_than_is_allowed(policy: MigrationPolicy, leave: int, enter: int) -> None:
    fixture = crowd(3, policy)
    moves = fixture.settled().moves
    leaving = Counter(move.source for move in moves)
    entering = Counter(move.target for move in moves)
    assert max(leaving.values(), default=0) == leave
    assert max(entering.values(), default=0) == enter
    assert len(moves) <= policy.at_once(nodes=5)


def test_what_is_under_way_counts_against_the_limits() -> None:
    fixture = crowd(3, MigrationPolicy(per_cluster=2, out_per_node=1, in_per_node=1))
    first, second = fixture.settled().moves
    assert first.target != second.target
    fixture.carry_out(first)
    assert fixture.plan().moves == (second,)
    fixture.carry_out(second)
    assert fixture.plan() == MovePlan()


def order_of_another(of: str, **more: object) -> MigrationFacts:
    """A user's migration that no controller has accepted yet."""
    return replace(migration(of, MigrationPhase.PENDING, is_ours=False), **more)  # type: ignore[arg-type] # fields


def test_migration_without_pod_uses_no_slot() -> None:
    fixture = crowd(1, MigrationPolicy(per_cluster=1))
    fixture.migration(order_of_another("unknown"))
    assert len(fixture.settled().moves) == 1


def test_foreign_migration_takes_slot_until_stalled() -> None:
    fixture = crowd(2, MigrationPolicy(per_cluster=2))
    fixture.add("theirs", "t0", 1)
    fixture.migration(order_of_another("theirs"))
    waits = StuckNode(
        "n1", "concurrent migrations are at their limit of 2; ordered by others or cancelled: db/theirs-1"
    )
    for plan in (fixture.settled(), fixture.plan(after=START_TIMEOUT)):
        assert ([move.source for move in plan.moves], plan.stuck) == (["n0"], (waits,))
    fixture.fleet.apply(TimePassed(), fixture.now)
    late = fixture.plan()
    assert (len(late.moves), late.stuck) == (2, ())


@pytest.mark.parametrize(("most", "moves"), [(1, 1), (2, 1), (3, 2), (4, 2)])
def test_foreign_migrations_take_half_of_slots(most: int, moves: int) -> None:
    """A user who may migrate the VMs of one namespace, slowly, could block all other migrations."""
    fixture = crowd(3, MigrationPolicy(per_cluster=most, in_per_node=9))
    for number in range(5):
        fixture.add(f"theirs{number}", "t0", 1)
        fixture.migration(order_of_another(f"theirs{number}", phase=MigrationPhase.RUNNING))
    fixture.settled()
    assert len(fixture.plan(after=3600).moves) == moves


def test_foreign_migration_does_not_hold_its_node() -> None:
    """Otherwise a node that a tenant's VM leaves slowly would never be relieved, and its other VMs could not grow."""
    fixture = crowd(1, MigrationPolicy(per_cluster=9))
    fixture.migration(order_of_another("v00", phase=MigrationPhase.RUNNING))
    (move,) = fixture.settled().moves
    assert (move.source, move.vm) == ("n0", name("v01"))


@pytest.mark.parametrize("phase", [MigrationPhase.PENDING, MigrationPhase.RUNNING])
def test_cancelled_migration_holds_its_node_no_more(phase: MigrationPhase) -> None:
    """A tenant's finalizer keeps the object of our cancelled migration."""
    fixture = crowd(1, MigrationPolicy(per_cluster=9, in_per_node=1))
    for number, target in enumerate(("t0", "t1")):
        fixture.migration(migration(f"v0{number}", phase, to=target, is_terminating=True))
    (move,) = fixture.settled().moves
    assert (move.source, move.vm) == ("n0", name("v02"))


def test_of_many_of_others_three_are_named() -> None:
    fixture = crowd(6, MigrationPolicy(per_cluster=10, in_per_node=20))
    for number in range(6):
        fixture.add(f"theirs{number}", "t0", 1)
        fixture.migration(order_of_another(f"theirs{number}"))
    named = "db/theirs0-1, db/theirs1-1, db/theirs2-1 and 2 more"
    waits = StuckNode("n5", f"concurrent migrations are at their limit of 10; ordered by others or cancelled: {named}")
    plan = fixture.settled()
    assert (len(plan.moves), plan.stuck) == (5, (waits,))


def test_denying_then_full_then_draining() -> None:
    fixture = PlannerFixture(node("drain", is_open=False), node("full"), node("denies"), node("t", 100))
    fixture.policy = MigrationPolicy(per_cluster=1, in_per_node=9)
    for of in ("drain", "full", "denies"):
        fixture.add(f"idle-{of}", of, 4, load=0.0)
        fixture.add(f"busy-{of}", of, 4, load=1.0)
    fixture.tell("busy-denies", amount(9))
    order = []
    for number in range(3):
        (move,) = fixture.settled().moves
        order.append(move.source)
        fixture.policy = MigrationPolicy(per_cluster=number + 2, in_per_node=9)
        fixture.carry_out(move)
    assert order == ["denies", "full", "drain"]


def test_cordoned_node_drains_one_by_one() -> None:
    fixture = PlannerFixture(node("n1", is_open=False), node("n2"))
    fixture.add("a", "n1", 1, load=1.0)
    fixture.add("b", "n1", 1, load=0.0)
    (move,) = fixture.settled().moves
    assert move == Move(name("b"), "uid-b", "n1", "n2", "node n1 is cordoned", MoveCause.DRAIN)
    fixture.carry_out(move)
    assert fixture.plan().moves == ()
    fixture.migration(migration("b", MigrationPhase.SUCCEEDED, to="n2", target_pod="b-target", ended_at=WALL))
    assert [move.vm for move in fixture.plan(after=1).moves] == [name("a")]


def test_undrainable_node_is_explained() -> None:
    fixture = PlannerFixture(node("n1", is_open=False), node("n2"))
    assert fixture.settled() == MovePlan()
    fixture.add("a", "n1", 1, facts={"stays_because": "not autoscaled"})
    assert fixture.settled().stuck == (StuckNode("n1", "no VM may move: 1 not autoscaled"),)


def test_lost_node_takes_no_slot() -> None:
    """n1 was cordoned because its machine was lost: no migration from it can end before its pods are deleted."""
    lost = replace(node("n1", is_open=False), traits=NodeTraits(faults=(NOT_READY,)))  # type: ignore[type-var]
    fixture = PlannerFixture(lost, node("n2"))
    fixture.add("a", "n1", 1)
    assert fixture.moves() == {"a": "n2"}, "as long as its agent reports, only its kubelet is down"
    why = "no VM may move: 1 on a node that is not ready or gone, with a silent agent"
    assert fixture.plan(after=60.0) == MovePlan(stuck=(StuckNode("n1", why),))
    fixture.tell("a", amount(1))
    assert len(fixture.plan().moves) == 1


@pytest.mark.parametrize("phase", [MigrationPhase.PENDING, MigrationPhase.RUNNING])
@pytest.mark.parametrize("is_deleted", [False, True])
def test_migration_off_lost_node_is_cancelled(phase: MigrationPhase, is_deleted: bool) -> None:
    """It could not end before its timeout, and kept one of the few slots until then."""
    fixture = PlannerFixture(node("n1", is_open=False), node("n2"))
    fixture.add("a", "n1", 1)
    fixture.carry_out(fixture.settled().moves[0])
    fixture.migration(migration("a", phase, to="n2", source_pod="a-pod", target_pod="a-target"))
    lost = replace(node("n1", is_open=False), traits=NodeTraits(faults=(NOT_READY,)))  # type: ignore[type-var]
    fixture.fleet.apply(NodeGone("n1") if is_deleted else NodeSeen(lost))  # type: ignore[arg-type]
    assert fixture.plan(after=50.0).cancels == (), "its agent may only be slow"
    why = "node n1 is not ready or gone, and the VM's agent is silent"
    assert fixture.plan(after=10.0).cancels == (Cancel(name("a-1"), why),)
    fixture.tell("a", amount(1))
    assert fixture.plan().cancels == ()


def test_new_leader_first_listens_to_agents() -> None:
    """It has heard no agent yet: a node whose kubelet restarts is not lost."""
    lost = replace(node("n1", is_open=False), traits=NodeTraits(faults=(NOT_READY,)))  # type: ignore[type-var]
    fixture = PlannerFixture(lost, node("n2"))
    fixture.add("a", "n1", 1, load=None)
    fixture.migration(migration("a", MigrationPhase.RUNNING, to="n2", source_pod="a-pod", target_pod="a-target"))
    assert [bool(fixture.plan(after=seconds).cancels) for seconds in (1.0, 58.0, 1.0)] == [False, False, True]


def test_full_cluster_rotates_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planner_module, "NODES_PER_ROUND", 2)
    fixture = PlannerFixture(*(node(f"n{number}") for number in range(5)))
    for number in range(5):
        fixture.add(f"v{number}", f"n{number}", 8)
    stuck = [
        [each.node for each in fixture.settled().stuck],
        *([e.node for e in fixture.plan().stuck] for _ in range(3)),
    ]
    assert [sorted(each) for each in stuck] == [
        ["n0", "n1"],
        ["n0", "n1", "n2", "n3"],
        ["n0", "n1", "n2", "n3", "n4"],
        ["n0", "n1", "n2", "n3", "n4"],
    ]
    fixture.fleet.apply(PodGone("uid-v0"))
    fixture.fleet.apply(PodSeen(plain_pod("b", amount(1), "n1")))
    assert "n0" not in [each.node for each in fixture.plan().stuck]


def test_draining_may_be_switched_off() -> None:
    fixture = PlannerFixture(node("n1", is_open=False), node("n2"), policy=MigrationPolicy(drain_cordoned=False))
    fixture.add("a", "n1", 1)
    assert fixture.settled() == MovePlan()
    fixture.add("b", "n1", 7)
    assert len(fixture.settled().moves) == 1


def test_nobody_moves_while_migration_is_switched_off() -> None:
    fixture = pressed(policy=MigrationPolicy(enabled=False))
    assert fixture.settled() == MovePlan()
    fixture.policy = MigrationPolicy()
    assert len(fixture.plan().moves) == 1
