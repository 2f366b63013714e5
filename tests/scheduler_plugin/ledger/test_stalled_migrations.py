"""A migration that does not start is ignored after a while: it reserves nothing, and its VM has not left (S4.9)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from protocol.units import ZERO, Instant
from scheduler_plugin.ledger.events import MigrationSeen, MoveRequested, PodSeen, TimePassed, VmSeen
from scheduler_plugin.ledger.facts import MigrationPhase
from scheduler_plugin.ledger.moves import START_TIMEOUT
from scheduler_plugin.placement.verdict import FITS
from tests.scheduler_plugin.ledger.fleet import LATER, Fleet, amount, migration, name, vm, vm_pod
from tests.scheduler_plugin.ledger.moving import (
    FAILED,
    INCOMING,
    MOVE,
    PENDING,
    RUNNING,
    STARTED,
    SUCCEEDED,
    on_both,
    reserved_move,
    target_pod,
    two_nodes,
)

OVERDUE = Instant(LATER + START_TIMEOUT)


def ordered(fleet: Fleet, *, to: str | None = None, is_terminating: bool = False) -> Fleet:
    """A user has ordered the migration of ``a``."""
    order = migration("a", PENDING, to=to, is_ours=False, is_terminating=is_terminating)
    fleet.apply(MigrationSeen(order), LATER)
    return fleet


@pytest.mark.parametrize("to", [None, "n2"])
def test_vm_counts_as_gone_only_for_a_while(to: str | None) -> None:
    fleet = ordered(two_nodes(), to=to)
    assert fleet.apply(TimePassed(), Instant(OVERDUE - 1)) == ()
    assert fleet.ledger.nodes["n1"].migrating == amount(2)
    fleet.apply(TimePassed(), OVERDUE)
    assert fleet.ledger.nodes["n1"].migrating == ZERO
    assert not fleet.ledger.claims["uid-a"].is_migrating


def test_freed_target_room_caps_nothing() -> None:
    """The target has 3 of 9 left besides the reservation, so the VM could not grow beyond 5."""
    fleet = ordered(two_nodes(total=6), to="n2")
    assert (on_both(fleet), fleet.ask("a", amount(8)).permit) == ((2, 2), amount(5))
    fleet.apply(TimePassed(), OVERDUE)
    assert INCOMING not in fleet.ledger.claims
    assert fleet.ask("a", amount(8), now=OVERDUE).permit == amount(8)


def test_it_is_named_and_why() -> None:
    fleet = ordered(two_nodes(), to="n2")
    fleet.apply(TimePassed(), OVERDUE)
    why = "its target pod has had no node for 60 s, so it is ignored until it has one"
    assert fleet.ledger.migrations[name("a-1")].problem == why


def test_migration_counts_again_once_target_is_placed() -> None:
    fleet = ordered(two_nodes(), to="n2")
    fleet.apply(TimePassed(), OVERDUE)
    fleet.apply(PodSeen(target_pod("n2")))
    assert fleet.ledger.nodes["n1"].migrating == amount(2)
    assert (fleet.ledger.claims["uid-a"].is_frozen, fleet.ledger.migrations[name("a-1")].problem) == (True, None)


def test_one_that_runs_is_never_overdue() -> None:
    fleet = reserved_move()
    fleet.apply(MigrationSeen(STARTED), LATER)
    fleet.apply(TimePassed(), Instant(LATER + 3600))
    assert fleet.ledger.nodes["n1"].migrating == amount(2)
    assert fleet.ledger.migrations[name("a-1")].phase is RUNNING


def test_lingering_cancelled_migration_does_not_count() -> None:
    """Its controller is dead, and nothing else would remove its finalizer."""
    fleet = ordered(two_nodes(), is_terminating=True)
    fleet.apply(TimePassed(), OVERDUE)
    assert fleet.ledger.nodes["n1"].migrating == ZERO


def test_waiting_neighbour_presses_again() -> None:
    fleet = two_nodes()
    fleet.apply(VmSeen(vm("b", amount(1))), LATER)
    fleet.apply(PodSeen(vm_pod("b", "n1")))
    ordered(fleet)
    assert fleet.ask("b", amount(8)).permit == amount(7)
    before = fleet.ledger.nodes["n1"].pressure.excess
    fleet.apply(TimePassed(), OVERDUE)
    assert not fleet.ledger.nodes["n1"].pressure.excess.within(before)


@pytest.mark.parametrize("last", [PENDING, RUNNING, SUCCEEDED, FAILED])
def test_released_migration_is_gone(last: MigrationPhase) -> None:
    """Its controller has removed its finalizer; the one of another program may keep the object for ever."""
    fleet = ordered(two_nodes(), to="n2")
    fleet.apply(MigrationSeen(migration("a", last, to="n2", version=2)), LATER)
    kept = migration("a", last, to="n2", version=3, is_terminating=True)
    fleet.apply(MigrationSeen(kept), LATER)
    assert name("a-1") in fleet.ledger.migrations
    for _ in range(2):
        fleet.apply(MigrationSeen(replace(kept, version=4, is_released=True)), LATER)
        assert (fleet.ledger.migrations, on_both(fleet)) == ({}, (2, 0))
    again = fleet.ledger.apply(MoveRequested(MOVE, name("a-2")), LATER)
    assert (again.verdict, on_both(fleet)) == (FITS, (2, 2))
