"""The replicas in the read endpoint, and why others are excluded."""

from __future__ import annotations

from dataclasses import replace

import pytest
from msgspec import structs

from protocol.guest.database import DatabaseState
from protocol.units import Seconds
from scheduler_plugin.groups.core.replicas.group_plan import SILENCE, exclusion_reason, exclusion_reasons
from scheduler_plugin.groups.core.replicas.members import Member
from tests.scheduler_plugin.groups.core.replicas.group_story import PRIMARY, SHOP, STANDBY, replica

AWAY = replace(PRIMARY, available=False)
LOST = structs.replace(STANDBY, streaming=False)


def behind(seconds: float | None) -> DatabaseState:
    return structs.replace(STANDBY, lag=None if seconds is None else Seconds(seconds))


@pytest.mark.parametrize(
    ("member", "because"),
    [
        (replica(0), ""),
        (replica(0, listed=False), ""),
        (replica(0, leaving=True), "it is leaving the group"),
        (replica(0, draining=Seconds(0.0)), "it is leaving the group"),
        (replica(0, available=False), "its database does not accept connections yet"),
        (replica(0, address=""), "it has no address yet"),
        (replica(0, database=DatabaseState(is_standby=False)), "its database is not a standby"),
        (replica(0, database=behind(10.0), listed=False), ""),
        (replica(0, database=behind(12.0), listed=False), "its replication lag is more than 10 s"),
        (replica(0, database=behind(20.0)), ""),
        (replica(0, database=behind(21.0)), "its replication lag is more than 20 s"),
        (replica(0, database=behind(None)), ""),
        (replica(0, database=behind(None), listed=False), "its replication lag is unknown"),
    ],
)
def test_replica_serves_once_streaming_and_current(member: Member, because: str) -> None:
    assert exclusion_reason(member, PRIMARY, SHOP) == because


def test_briefly_silent_member_keeps_state() -> None:
    assert exclusion_reason(replica(0, database=None), PRIMARY, SHOP) == ""
    new = replica(0, database=None, listed=False)
    assert exclusion_reason(new, PRIMARY, SHOP) == "its agent does not report the state of its database"


def silent(ordinal: int, seconds: float = SILENCE, **changes: object) -> Member:
    return replica(ordinal, database=None, silent=Seconds(seconds), **changes)


@pytest.mark.parametrize(
    ("members", "served"),
    [
        ([silent(0), replica(1)], [1]),
        ([silent(0, SILENCE - 1), replica(1)], [0, 1]),
        ([silent(0), silent(1)], [0, 1]),
        ([silent(0), silent(1, SILENCE - 1)], [1]),
        ([silent(0), replica(1, available=False)], [0]),
        ([silent(0), silent(1, listed=False)], [0]),
        ([], []),
    ],
)
def test_long_silent_member_serves_last(members: list[Member], served: list[int]) -> None:
    found = exclusion_reasons(members, PRIMARY, SHOP)
    assert [each.ordinal for each in members if not found[each.name]] == served
    unsaid = "its agent does not report the state of its database"
    assert {found[each.name] for each in members if each.database is None} <= {"", unsaid}


def test_replicas_serve_without_primary() -> None:
    lone, new = replica(0, database=LOST), replica(1, database=LOST, listed=False)
    lost = "it does not stream from the primary"
    assert [exclusion_reason(lone, primary, SHOP) for primary in (PRIMARY, AWAY, None)] == [lost, "", ""]
    assert [exclusion_reason(new, primary, SHOP) for primary in (PRIMARY, AWAY)] == [lost, lost]
