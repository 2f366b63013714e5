"""Targets that go, fill up or are replaced while a migration is under way, and news that comes late."""

from __future__ import annotations

import pytest

from protocol.units import Instant
from scheduler_plugin.ledger import moves as moves_module
from scheduler_plugin.ledger.events import (
    BindRequested,
    MigrationCreateEnded,
    MigrationGone,
    MigrationSeen,
    MoveRequested,
    NodeGone,
    NodeSeen,
    PodGone,
    PodSeen,
    TimePassed,
    VmSeen,
    WriteOutcome,
)
from scheduler_plugin.ledger.facts import PodFacts
from scheduler_plugin.ledger.moves import START_TIMEOUT
from scheduler_plugin.ledger.outcomes import RoomFreed
from scheduler_plugin.placement.verdict import CORDONED, NO_FREE_CPU
from tests.scheduler_plugin.ledger.fleet import (
    LATER,
    NOW,
    Fleet,
    amount,
    migration,
    name,
    node,
    permit_stored,
    plain_pod,
    vm,
    vm_pod,
)
from tests.scheduler_plugin.ledger.moving import (
    BROKEN,
    MOVE,
    ONE,
    PENDING,
    hear,
    on_both,
    reserved_move,
    target_pod,
    two_nodes,
)


def test_deleted_target_drops_booking() -> None:
    fleet = reserved_move()
    fleet.apply(NodeGone("n2"))
    assert ("n2" in fleet.ledger.nodes, fleet.ledger.migrations[ONE].problem) == (False, "node n2 is gone")
    fleet.apply(NodeSeen(node("n2")))
    assert (on_both(fleet), fleet.ledger.migrations[ONE].problem) == ((2, 2), None)


def test_cordoned_target_drops_booking() -> None:
    fleet = reserved_move()
    fleet.apply(NodeSeen(node("n2", is_open=False)))
    assert (on_both(fleet), fleet.ledger.migrations[ONE].problem) == ((2, 0), "node n2: node(s) were unschedulable")
    assert fleet.ledger.apply(BindRequested(target_pod(), "n2"), LATER).verdict is CORDONED


def test_full_target_is_not_overcommitted() -> None:
    fleet = reserved_move()
    fleet.apply(NodeGone("n2"))
    fleet.apply(PodSeen(plain_pod("b", amount(8), "n2")))
    fleet.apply(NodeSeen(node("n2")))
    assert (on_both(fleet), fleet.ledger.migrations[ONE].problem) == ((2, 8), "node n2: Insufficient cpu")
    assert fleet.ledger.apply(BindRequested(target_pod(), "n2"), LATER).verdict is NO_FREE_CPU


def test_ended_booking_wakes_waiters() -> None:
    fleet = two_nodes(total=3)
    fleet.did(fleet.ledger.apply(MoveRequested(MOVE, ONE), LATER).effects)
    assert not fleet.ledger.filter(plain_pod("b", amount(2)), ["n2"]).fits
    assert fleet.apply(MigrationCreateEnded(ONE, WriteOutcome.REFUSED)) == (RoomFreed("n2"),)


def test_a_booking_takes_nobodys_name() -> None:
    fleet = reserved_move()
    assert fleet.ledger.uid_of(ONE) is None
    fleet.apply(PodSeen(PodFacts("uid-x", ONE, amount(1), None, "n1")))
    fleet.apply(MigrationCreateEnded(ONE, WriteOutcome.REFUSED))
    assert fleet.ledger.uid_of(ONE) == "uid-x"


def test_replaced_vm_keeps_reservation_until_end() -> None:
    fleet = reserved_move()
    fleet.apply(VmSeen(vm("a", amount(1), uid="second")), LATER)
    assert on_both(fleet) == (2, 2)
    hear(fleet, BROKEN)
    assert on_both(fleet) == (2, 0)


@pytest.mark.parametrize("is_terminating", [False, True])
def test_replaced_vms_migration_never_begins(is_terminating: bool) -> None:
    """Its VM was deleted and recreated; the controller leaves the migration and its finalizer alone."""
    fleet = reserved_move()
    fleet.apply(VmSeen(vm("a", amount(1), uid="second")), LATER)
    fleet.apply(PodGone("uid-a"))
    hear(fleet, migration("a", PENDING, to="n2", is_terminating=is_terminating))
    fleet.apply(TimePassed(), Instant(LATER + START_TIMEOUT))
    assert (on_both(fleet), fleet.ledger.claims) == ((0, 0), {})


def test_only_so_many_of_the_dead_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(moves_module, "MAX_GONE", 1)
    fleet = two_nodes()
    for number in (1, 2):
        fleet.apply(MigrationSeen(migration("a", PENDING, number=number)), NOW)
        fleet.apply(MigrationGone(name(f"a-{number}")))
    fleet.apply(MigrationSeen(migration("a", PENDING, number=2)), NOW)
    assert dict(fleet.ledger.migrations) == {}
    fleet.apply(MigrationSeen(migration("a", PENDING, number=1)), NOW)
    assert list(fleet.ledger.migrations) == [ONE]


def test_answer_naming_pod_triggers_order() -> None:
    fleet = Fleet(node(), vm("a", amount(2)), vm_pod("a", "n1"))
    hear(fleet, migration("a", PENDING, is_ours=False))
    decision = fleet.ask("a", amount(2), number=1)
    assert decision.persist is not None
    assert not decision.migrate
    answer = vm("a", amount(2), permit=amount(2), version=2, pod=name("a-pod"))
    fleet.apply(permit_stored(decision.persist.revision, answer))
    assert fleet.ledger.claims["uid-a"].is_migrating
