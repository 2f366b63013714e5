"""How long a VM rests after failures in a row, and when they are forgotten."""

from __future__ import annotations

import pytest

from protocol.units import Instant
from scheduler_plugin.ledger import MigrationPhase
from scheduler_plugin.ledger.moves import Migration
from scheduler_plugin.planner import Rest
from tests.scheduler_plugin.ledger.fleet import migration, name

DAY = 86_400.0
REST = Rest()


def failed(at: float) -> Migration:
    """One that is not cleared away: a person made it."""
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
def test_a_vm_rests_twice_as_long_after_each_failure_unless_the_last_one_is_long_ago(
    ends: list[float], rests: float
) -> None:
    assert REST.until([failed(at) for at in ends], drains=False) == ends[-1] + rests
