"""The VM ``a`` while it migrates from n1 to n2, and its accounts on both nodes."""

from __future__ import annotations

from protocol.units import ZERO
from scheduler_plugin.ledger.events import MigrationGone, MigrationSeen, MoveRequested, PodGone, PodSeen, VmSeen
from scheduler_plugin.ledger.facts import MigrationFacts, MigrationPhase, PodFacts
from scheduler_plugin.ledger.moves import Move
from scheduler_plugin.placement.verdict import FITS
from tests.scheduler_plugin.ledger.fleet import (
    LATER,
    Fleet,
    amount,
    migration,
    name,
    node,
    vm,
    vm_pod,
)

PENDING, RUNNING = MigrationPhase.PENDING, MigrationPhase.RUNNING
SUCCEEDED, FAILED = MigrationPhase.SUCCEEDED, MigrationPhase.FAILED
MOVE = Move(name("a"), "uid-a", "n1", "n2", "node n1 is full")
ONE, INCOMING = name("a-1"), "reservation of db/a-1"


def two_nodes(*, total: float = 10) -> Fleet:
    """The VM ``a`` with 2 CPUs and 2Gi runs on n1; n2 is empty."""
    return Fleet(node(), node("n2", total), vm("a", amount(2), pod=name("a-pod")), vm_pod("a", "n1"))


def target_pod(on: str | None = None, *, owner: str | None = "a-1", uid: str = "uid-t") -> PodFacts:
    """The target pod of the first migration; ``owner`` is None once the VM owns it."""
    return PodFacts(uid, name("a-target"), amount(0.1), name("a"), on, migration=None if owner is None else name(owner))


def reserved_move() -> Fleet:
    fleet = two_nodes()
    assert fleet.ledger.apply(MoveRequested(MOVE, ONE), LATER).verdict is FITS
    return fleet


def on_both(fleet: Fleet) -> tuple[float, float]:
    """The CPUs reserved on n1 and n2; memory is the same."""
    books = fleet.ledger.nodes
    found = [books[each].reserved if each in books else ZERO for each in ("n1", "n2")]
    assert all(each == amount(each.cpu.as_cores) for each in found)
    return found[0].cpu.as_cores, found[1].cpu.as_cores


Event = MigrationFacts | PodFacts | str


def hear(fleet: Fleet, event: Event) -> None:
    """Apply one event: a fact, the deletion of a pod by UID or of the migration by name, or ``vm``, the VM's
    hand-over.
    """
    if isinstance(event, MigrationFacts):
        fleet.apply(MigrationSeen(event), LATER)
    elif isinstance(event, PodFacts):
        fleet.apply(PodSeen(event))
    elif event == "vm":
        fleet.apply(VmSeen(vm("a", amount(2), version=9, pod=name("a-target"))), LATER)
    elif event == "migration":
        fleet.apply(MigrationGone(ONE))
    else:
        fleet.apply(PodGone(event))


STARTED = migration("a", RUNNING, to="n2", version=2, target_pod="a-target")
DONE = migration("a", SUCCEEDED, to="n2", version=3, target_pod="a-target")
BROKEN = migration("a", FAILED, to="n2", version=3, target_pod="a-target")
