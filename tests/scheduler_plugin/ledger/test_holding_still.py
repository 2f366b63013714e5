"""A VM's size is frozen from when its target pod has a node until it has migrated, and only then, regardless of its
agent.
"""

from __future__ import annotations

from dataclasses import replace

from protocol.messages import AgentRequest
from protocol.units import Instant
from scheduler_plugin.ledger.events import BindEnded, BindRequested, MigrationSeen, PermitRequested, WriteOutcome
from scheduler_plugin.ledger.outcomes import PermitDecision
from scheduler_plugin.placement.verdict import FITS
from tests.scheduler_plugin.ledger.fleet import LATER, Fleet, amount, migration, name
from tests.scheduler_plugin.ledger.moving import FAILED, RUNNING, on_both, reserved_move, target_pod


def asked(fleet: Fleet, cpus: float, number: int) -> tuple[bool, float]:
    """Whether the response freezes the source's size, and the permit."""
    decision: PermitDecision = fleet.ask("a", amount(cpus), number=number)
    fleet.store(decision)
    return decision.migrate, decision.permit.cpu.as_cores


def placed() -> Fleet:
    """The VM with 2 CPUs was permitted 4, then its target pod got a node."""
    fleet = reserved_move()
    assert asked(fleet, 4, 1) == (False, 4)
    assert fleet.ledger.apply(BindRequested(target_pod(), "n2"), LATER).verdict is FITS
    return fleet


def test_unplaced_target_lets_vm_grow() -> None:
    fleet = reserved_move()
    assert (asked(fleet, 4, 1), on_both(fleet)) == ((False, 4), (4, 4))


def test_placed_target_freezes_permits() -> None:
    fleet = placed()
    assert [asked(fleet, cpus, number) for number, cpus in enumerate((4, 8, 3, 1), start=2)] == [
        (True, 2),
        (True, 2),
        (True, 2),
        (True, 1),
    ]
    assert fleet.ledger.claims["uid-a"].is_frozen


def test_a_late_message_gets_no_more_either() -> None:
    fleet = placed()
    late = AgentRequest(name("a-pod"), amount(4), sequence=0)
    decision = fleet.ledger.apply(PermitRequested("uid-a", late), Instant(LATER + 1))
    assert (decision.migrate, decision.permit) == (True, amount(2))


def test_target_without_node_frees_growth() -> None:
    fleet = placed()
    fleet.apply(BindEnded("uid-t", "n2", WriteOutcome.REFUSED))
    assert asked(fleet, 4, 2) == (False, 4)


def test_running_migration_freezes_vm_without_target() -> None:
    fleet = reserved_move()
    fleet.apply(MigrationSeen(migration("a", RUNNING)), LATER)
    assert asked(fleet, 4, 1) == (True, 2)
    fleet.apply(MigrationSeen(replace(migration("a", FAILED), version=9)), LATER)
    assert asked(fleet, 4, 2) == (False, 4)


def test_held_size_stays_reserved() -> None:
    """The response that revokes a permit may be lost, or arrive after a patch that uses it."""
    fleet, reserved = placed(), list[tuple[float, float]]()
    for number, cpus in enumerate((4, 8, 3, 1), start=2):
        asked(fleet, cpus, number)
        reserved.append(on_both(fleet))
    assert reserved == [(4, 4), (4, 4), (3, 3), (2, 2)]
