"""How long the group waits for a leaving replica."""

from __future__ import annotations

import pytest

from protocol.guest.database import DatabaseState
from protocol.units import Seconds
from scheduler_plugin.groups.core.replicas.group_plan import drain
from tests.scheduler_plugin.groups.core.replicas.group_story import SHOP, replica


def of(sessions: int, oldest: float | None = None) -> DatabaseState:
    transaction = None if oldest is None else Seconds(oldest)
    return DatabaseState(True, True, Seconds(0.0), sessions, transaction)


@pytest.mark.parametrize(
    ("age", "database", "done", "because"),
    [
        (4.9, of(0), False, "clients may still use its address"),
        (5.0, of(0), True, "it has no sessions left"),
        (12.0, of(3), False, "3 sessions, 12 s of the grace period of 30 s"),
        (30.0, of(3), True, "the grace period of 30 s and all transactions begun in it are over"),
        (40.0, of(3, 10.0), False, "a transaction that began within the grace period is still open"),
        (40.0, of(3, 9.9), True, "the grace period of 30 s and all transactions begun in it are over"),
        (599.0, of(1, 599.0), False, "a transaction that began within the grace period is still open"),
        (600.0, of(1, 600.0), True, "it has been draining for 600 s"),
        (599.0, None, False, "its number of sessions is unknown, because its agent does not respond"),
    ],
)
def test_open_transaction_is_awaited(age: float, database: DatabaseState | None, done: bool, because: str) -> None:
    found = drain(replica(0, database=database, listed=False), Seconds(age), SHOP)
    assert (found.done, found.reason) == (done, because)


def test_stopped_guest_is_not_awaited() -> None:
    found = drain(replica(0, available=False), Seconds(0.0), SHOP)
    assert (found.done, found.reason) == (True, "its database is not running, so it has no clients")


def test_listed_replica_is_kept() -> None:
    found = drain(replica(0, listed=True), Seconds(601.0), SHOP)
    assert (found.done, found.reason) == (False, "the read endpoint still lists it")
