"""NeonVM's controller leaves a VM in phase PreMigrating if its migration's target pod fails.

Until the migration is deleted it neither resizes nor restarts the VM. Whichever migration of the VM is deleted in this
phase, it deletes that one's target pod.
"""

from __future__ import annotations

from dataclasses import replace

from msgspec import structs

from scheduler_plugin.ledger.events import MigrationGone, VmSeen
from scheduler_plugin.ledger.facts import PRE_MIGRATING, RUNNING, MigrationPhase
from tests.scheduler_plugin.ledger.fleet import name
from tests.scheduler_plugin.planner.planner_fixture import PlannerFixture
from tests.scheduler_plugin.planner.test_planner import over, pressed

FAILED, SUCCEEDED = MigrationPhase.FAILED, MigrationPhase.SUCCEEDED


def held(*, drains: bool = False) -> PlannerFixture:
    """The VM ``a`` arrived by its first migration; its second one has just failed."""
    fixture = pressed(over(1, SUCCEEDED, 4000), drains=drains)
    fixture.migration(over(2, FAILED, 0))
    in_phase(fixture, PRE_MIGRATING)
    return fixture


def in_phase(fixture: PlannerFixture, phase: str) -> None:
    known = fixture.ledger.vms[name("a")].facts
    assert known is not None
    fixture.fleet.apply(VmSeen(structs.replace(known, version=known.version + 1, phase=phase)), fixture.now)


def test_failed_migration_that_holds_vm_is_deleted() -> None:
    fixture = held()
    assert [fixture.plan(after).forget for after in (0.0, 14.9, 0.1)] == [(), (), (name("a-2"),)]
    fixture.migration(replace(over(2, FAILED, 0), version=2, is_terminating=True))
    assert fixture.plan(after=1.0).forget == ()
    in_phase(fixture, RUNNING)
    fixture.fleet.apply(MigrationGone(name("a-2")))
    assert fixture.plan(after=1.0).forget == (name("a-1"),)


def test_no_other_migration_of_held_vm_is_deleted() -> None:
    """A user's migration has failed: only its owner may delete it, and the VM runs in the first one's target pod."""
    fixture = held()
    fixture.migration(replace(over(2, FAILED, 0), version=2, is_ours=False))
    assert [fixture.plan(after).forget for after in (0.0, 60.0, 7200.0)] == [(), (), ()]


def test_vm_rests_after_failure_that_held_it() -> None:
    fixture = held(drains=True)
    assert [fixture.plan(after).forget for after in (0.0, 15.0)] == [(), (name("a-2"),)]
    in_phase(fixture, RUNNING)
    for gone in ("a-1", "a-2"):
        fixture.fleet.apply(MigrationGone(name(gone)))
    assert [fixture.plan(after).moves != () for after in (10.0, 289.9, 0.1)] == [False, False, True]
