"""Backoff of a VM after repeated failures, and its end."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import pytest

from protocol.units import Instant
from scheduler_plugin.ledger.events import MigrationSeen
from scheduler_plugin.ledger.facts import MigrationPhase
from scheduler_plugin.ledger.ledger import Ledger
from scheduler_plugin.ledger.moves import Migration, MoveCause
from scheduler_plugin.planner.victims import MoveDelays, PlanningTime, count_recent_moves
from tests.scheduler_plugin.ledger.fleet import migration, name

DAY = 86_400.0
REST = MoveDelays()


def at(wall: float) -> PlanningTime:
    return PlanningTime(Instant(0.0), wall)


def failed(at: float) -> Migration:
    """A failed migration that is not deleted, because a user created it."""
    facts = migration("a", MigrationPhase.FAILED, is_ours=False, ended_at=at)
    return Migration(name("a-1"), name("a"), Instant(0.0), facts=facts)


@pytest.mark.parametrize(
    ("ends", "rests"),
    [
        ([0.0], 60.0),
        ([0.0, 100.0], 120.0),
        ([0.0, 100.0, 7200.0], 240.0),
        ([0.0, 100.0, 7400.0], 60.0),
        ([0.0, DAY, 2 * DAY, 2 * DAY + 60], 120.0),
    ],
)
def test_rest_doubles_per_recent_failure(ends: list[float], rests: float) -> None:
    assert REST.until([failed(at) for at in ends], at(ends[-1]), drains=False) == ends[-1] + rests


def test_recent_successful_moves_count() -> None:
    moved = [
        replace(failed(at), facts=migration("a", MigrationPhase.SUCCEEDED, ended_at=at)) for at in (0.0, 1.0, 900.0)
    ]
    assert [count_recent_moves([*moved, failed(950.0)], at(wall)) for wall in (1000.0, 3600.0, 3601.0, 4500.0)] == [
        3,
        2,
        1,
        0,
    ]


@pytest.mark.parametrize(
    ("cause", "until"),
    [(None, 3600.0), (MoveCause.WATERMARK, 3600.0), (MoveCause.DENIED_VM, 3600.0), (MoveCause.DRAIN, -inf)],
)
def test_vm_moved_by_a_drain_does_not_rest(cause: MoveCause | None, until: float) -> None:
    """After a rolling upgrade all VMs have just moved, and a denied neighbour need not wait for their cooldowns."""
    facts = migration("a", MigrationPhase.SUCCEEDED, ended_at=0.0)
    assert REST.until([replace(failed(0.0), facts=facts, cause=cause)], at(1.0), drains=False) == until


@pytest.mark.parametrize("phase", [MigrationPhase.SUCCEEDED, MigrationPhase.FAILED])
@pytest.mark.parametrize("dated", [1060.0, 1000.0 + DAY, 4.1e9], ids=["a minute", "a day", "the year 2100"])
def test_rest_counts_from_when_an_end_was_seen(phase: MigrationPhase, dated: float) -> None:
    """The controller's clock is ahead of ours: the cooldown starts when we see the migration's end."""
    ledger = Ledger()
    ledger.apply(MigrationSeen(migration("a", MigrationPhase.PENDING)), Instant(50.0))
    ledger.apply(MigrationSeen(migration("a", phase, version=2, ended_at=dated)), Instant(100.0))
    ledger.apply(MigrationSeen(migration("a", phase, version=3, ended_at=dated + 60.0)), Instant(160.0))
    known, seen_at = ledger.migrations_of(name("a")), 1000.0
    rest = REST.cooldown if phase is MigrationPhase.SUCCEEDED else REST.backoff
    for later in (60.0, 6000.0):
        now = PlanningTime(Instant(100.0 + later), seen_at + later)
        assert REST.until(known, now, drains=False) == seen_at + rest
    assert count_recent_moves(known, PlanningTime(Instant(3700.0), seen_at + 3600.0)) == 0
    assert [REST.expired(known, PlanningTime(Instant(100.0 + late), seen_at + late)) for late in (3599.0, 7200.0)] == [
        [],
        [known[0].name],
    ]
