"""Sleeping VMs stay while others move, and leave a node that is drained or lacks room for their wake (B.18)."""

from __future__ import annotations

from dataclasses import replace

from protocol.guest.sleep import ASLEEP, WAKING
from protocol.units import ZERO, Resources, Seconds
from scheduler_plugin.ledger.events import NodeSeen
from scheduler_plugin.ledger.facts import MigrationPhase
from scheduler_plugin.ledger.moves import MoveCause
from scheduler_plugin.planner.plan import MigrationPolicy
from tests.scheduler_plugin.ledger.fleet import amount, migration, name
from tests.scheduler_plugin.planner.planner_fixture import WALL, PlannerFixture, node

POLICY = MigrationPolicy(settle=Seconds(10.0), settle_denied=Seconds(3.0), out_per_node=9, in_per_node=9, per_cluster=9)


def add_sleeper(fixture: PlannerFixture, of: str, on: str, size: float, phase: str = ASLEEP, **facts: object) -> None:
    sleeps = {
        "phase": phase,
        "use": ZERO,
        "actual": None,
        "wakes_with": amount(size),
        "pod": name(f"{of}-pod"),
        **facts,
    }
    fixture.add(of, on, Resources.parse(0, 0), load=None, facts=sleeps)


def test_sleepers_stay_under_pressure() -> None:
    """They reserve nothing, so moving them would not help."""
    fixture = PlannerFixture(node("n1"), node("n2"), policy=POLICY)
    add_sleeper(fixture, "a", "n1", 2)
    fixture.add("b", "n1", 9, facts={"auto_migration": False})
    plan = fixture.settled()
    assert plan.moves == ()
    assert [stuck.why for stuck in plan.stuck] == [
        "no VM may move: 1 asleep, so migration would free nothing, 1 kept in place by a label or annotation"
    ]


def waiting(policy: MigrationPolicy = POLICY, *, there: float = 20, **facts: object) -> PlannerFixture:
    """On n1, which has a VM of 6, a VM of 5 waits to wake; n2 is empty."""
    fixture = PlannerFixture(node("n1"), node("n2", there), policy=policy)
    fixture.add("b", "n1", 6)
    add_sleeper(fixture, "a", "n1", 5, WAKING, **facts)
    fixture.tell("a", amount(5))
    assert fixture.ledger.nodes["n1"].unmet == amount(5)
    return fixture


def test_waking_vm_moves_to_a_node_with_room() -> None:
    """No other VM has to move: its own migration copies almost nothing, and no client notices."""
    fixture = waiting()
    moves = fixture.settled().moves
    assert [(move.vm.name, move.target, move.cause) for move in moves] == [("a", "n2", MoveCause.DENIED_VM)]
    assert "moving it frees 5.1 vCPU and 5 GiB" in moves[0].reason
    fixture.carry_out(moves[0])
    assert (fixture.ledger.nodes["n2"].reserved, fixture.plan(1.0).moves) == (amount(5), ())


def test_waking_vm_moves_before_others_would() -> None:
    """A client waits for it. Neighbours leave only after a denial that lasts as long as for any VM."""
    patient = replace(POLICY, settle_denied=Seconds(90.0))
    fixture = waiting(patient)
    assert (fixture.plan().moves, fixture.plan(2.0).moves) == ((), ())
    assert [move.vm.name for move in fixture.plan(1.0).moves] == ["a"]
    fixture = waiting(patient, there=7, auto_migration=False)
    assert (fixture.plan().moves, fixture.plan(10.0).moves) == ((), ())
    assert [stuck.node for stuck in fixture.plan().stuck] == ["n1"]


def test_neighbours_leave_for_a_waking_vm_that_stays() -> None:
    fixture = waiting(auto_migration=False)
    moves = fixture.settled().moves
    assert [(move.vm.name, move.target, move.cause) for move in moves] == [("b", "n2", MoveCause.DENIED_VM)]


def test_vm_that_moved_to_wake_stays() -> None:
    """It moves once: for an hour it waits for room where it is."""
    fixture = waiting()
    done = migration("a", MigrationPhase.SUCCEEDED, source_pod="a-old", target_pod="a-pod", ended_at=WALL)
    fixture.migration(done)
    assert [move.vm.name for move in fixture.settled().moves] == ["b"]


def test_drained_node_sends_sleepers_away() -> None:
    """They move to nodes with room for the size with which they wake."""
    fixture = PlannerFixture(node("n1"), node("n2", 4), node("n3", 20), policy=POLICY)
    add_sleeper(fixture, "a", "n1", 5)
    add_sleeper(fixture, "b", "n1", 1, WAKING)
    fixture.fleet.apply(NodeSeen(node("n1", is_open=False)), fixture.now)  # type: ignore[arg-type]  # node() makes nodes
    assert set(fixture.moves()) == {"a", "b"}
    assert fixture.moves()["a"] == "n3"
