"""The target pod of a migration goes to the node with its reservation, and takes the reservation over."""

from __future__ import annotations

from dataclasses import replace

import pytest

from scheduler_plugin.ledger.events import (
    BindEnded,
    BindRequested,
    MigrationSeen,
    MoveRequested,
    NodeSeen,
    PodGone,
    PodSeen,
    RequestsFollow,
    ResizeDue,
    VmSeen,
    WriteOutcome,
)
from scheduler_plugin.ledger.facts import MigrationFacts, PodFacts, RunnerRequests
from scheduler_plugin.ledger.migration_reservations import OTHER_VM, OVER, STAYS_AWAY
from scheduler_plugin.ledger.outcomes import NotReadyError, Reservation, ResizePod
from scheduler_plugin.placement.verdict import FITS, NeverFits
from tests.scheduler_plugin.ledger.fleet import (
    LATER,
    Fleet,
    amount,
    migration,
    name,
    node,
    vm,
)
from tests.scheduler_plugin.ledger.moving import (
    FAILED,
    INCOMING,
    MOVE,
    ONE,
    PENDING,
    SUCCEEDED,
    on_both,
    reserved_move,
    target_pod,
    two_nodes,
)


def test_target_pod_takes_reserved_node() -> None:
    fleet = two_nodes(total=3)
    fleet.apply(NodeSeen(node("n3")))
    fleet.did(fleet.ledger.apply(MoveRequested(MOVE, ONE), LATER).effects)
    found = fleet.ledger.filter(target_pod(), ["n1", "n2", "n3"])
    where = "the migration goes to node n2"
    assert (found.fits, found.refused, found.never) == (["n2"], {}, {"n1": where, "n3": where})
    assert fleet.ledger.apply(BindRequested(target_pod(), "n3"), LATER).verdict == NeverFits(where)
    assert fleet.ledger.apply(BindRequested(target_pod(), "n2"), LATER) == Reservation(FITS, needs_bind=True)
    fleet.did(())
    assert (on_both(fleet), INCOMING in fleet.ledger.claims) == ((2, 2), False)
    assert fleet.ledger.apply(BindRequested(target_pod(), "n2"), LATER) == Reservation(FITS, needs_bind=True)
    assert fleet.ledger.filter(target_pod(), ["n1", "n2"]).fits == ["n2"]


def test_refused_target_bind_keeps_booking() -> None:
    fleet = two_nodes(total=3)
    fleet.did(fleet.ledger.apply(MoveRequested(MOVE, ONE), LATER).effects)
    fleet.ledger.apply(BindRequested(target_pod(), "n2"), LATER)
    fleet.apply(BindEnded("uid-t", "n2", WriteOutcome.REFUSED))
    assert (on_both(fleet), INCOMING in fleet.ledger.claims) == ((2, 2), True)


def test_gone_target_pod_keeps_booking() -> None:
    fleet = reserved_move()
    fleet.apply(PodSeen(target_pod("n2")))
    assert (on_both(fleet), INCOMING in fleet.ledger.claims) == ((2, 2), False)
    fleet.apply(PodGone("uid-t"))
    assert (on_both(fleet), INCOMING in fleet.ledger.claims) == ((2, 2), True)


def test_foreign_bound_target_moves_booking() -> None:
    fleet = reserved_move()
    fleet.apply(NodeSeen(node("n3")))
    fleet.apply(PodSeen(target_pod("n3")))
    assert (on_both(fleet), fleet.on("n3")) == ((2, 0), amount(2))
    assert fleet.ledger.migrations[ONE].destination == "n3"


def test_unbooked_target_avoids_source() -> None:
    fleet = two_nodes()
    fleet.apply(MigrationSeen(migration("a", is_ours=False)), LATER)
    found = fleet.ledger.filter(target_pod(), ["n1", "n2", "n9"])
    assert (found.fits, found.never) == (["n2"], {"n1": "the VM is due to leave this node"})
    assert fleet.ledger.apply(BindRequested(target_pod(), "n1"), LATER).verdict is STAYS_AWAY
    assert fleet.ledger.apply(BindRequested(target_pod(), "n2"), LATER).verdict is FITS
    assert on_both(fleet) == (2, 2)


def test_target_pod_waits_for_migration_and_vm() -> None:
    fleet = Fleet(node(), node("n2"))
    with pytest.raises(NotReadyError, match="VirtualMachine db/a of pod db/a-target is not known yet"):
        fleet.ledger.filter(target_pod(), ["n2"])
    fleet.apply(VmSeen(vm("a", amount(2))), LATER)
    with pytest.raises(NotReadyError, match="migration db/a-1 of pod db/a-target is not known yet"):
        fleet.ledger.apply(BindRequested(target_pod(), "n2"), LATER)
    with pytest.raises(NotReadyError, match="migration db/a-1 of pod db/a-target is not known yet"):
        fleet.ledger.filter(target_pod(), ["n2"])


@pytest.mark.parametrize(
    "facts", [migration("a", SUCCEEDED, to="n2"), migration("a", FAILED), migration("a", PENDING, is_terminating=True)]
)
def test_target_of_ended_migration_fits_nowhere(facts: MigrationFacts) -> None:
    fleet = two_nodes()
    fleet.apply(MigrationSeen(facts), LATER)
    assert fleet.ledger.apply(BindRequested(target_pod(), "n2"), LATER).verdict is OVER
    fleet.ledger.filter(target_pod(), ["n2"])
    assert fleet.ledger.waiting == 1


def test_foreign_migration_name_takes_no_booking() -> None:
    fleet = reserved_move()
    fleet.apply(VmSeen(vm("b", amount(8))), LATER)
    thief = PodFacts("uid-b", name("b-pod"), amount(0.1), name("b"), migration=ONE)
    assert fleet.ledger.apply(BindRequested(thief, "n2"), LATER).verdict is OTHER_VM
    ordinary = PodFacts("uid-c", name("c-pod"), amount(1), None, migration=ONE)
    assert fleet.ledger.apply(BindRequested(ordinary, "n2"), LATER).verdict is OTHER_VM
    assert on_both(fleet) == (2, 2)


def test_target_pod_requests_before_bind() -> None:
    fleet = reserved_move()
    ledger = fleet.ledger
    ledger.apply(RequestsFollow(True), LATER)
    fleet.apply(MigrationSeen(migration("a", PENDING, to="n2")), LATER)
    pod = replace(target_pod(), runner=RunnerRequests(amount(0.1), version="3"))
    assert ledger.apply(BindRequested(pod, "n2"), LATER).needs_bind
    assert ledger.lacks_requests("uid-t")
    order, effects = ledger.apply(ResizeDue("uid-t"), LATER)
    fleet.did(effects)
    assert order == ResizePod("uid-t", name("a-target"), amount(2), "3")
