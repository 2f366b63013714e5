"""The desired group of VMs and its actual members (pure).

- Members are named ``GROUP-primary``, ``GROUP-replica-0`` and so on. The role follows from the name, so a restarted
  controller recognizes existing members and creates none twice.
- Times are ages in seconds at the time when the members were read.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from protocol.guest.database import DatabaseState
from protocol.units import Seconds

# No leading zeros: one name per member.
_REPLICA: Final = re.compile(r"(?P<group>.+)-replica-(?P<ordinal>0|[1-9][0-9]{0,5})")


class Role(StrEnum):
    """Role of a member: the primary takes writes, replicas serve reads."""

    PRIMARY = "primary"
    REPLICA = "replica"


@dataclass(frozen=True, slots=True)
class GroupSpec:
    """Desired group (``spec`` of a VirtualMachineGroup).

    ``replicas`` does not include the primary. ``max_lag`` is the maximum lag of a serving replica. Sessions of a
    draining replica may go on for ``grace``, and transactions that began within ``grace`` until ``drain_timeout``; both
    count from the start of the drain.
    """

    name: str
    replicas: int
    max_lag: Seconds = Seconds(10.0)
    grace: Seconds = Seconds(30.0)
    drain_timeout: Seconds = Seconds(600.0)


@dataclass(frozen=True, slots=True)
class DatabaseObservation:
    """Result of the last query of a database, None if it failed, and for how long queries have failed."""

    state: DatabaseState | None
    silent: Seconds | None = None


NOT_QUERIED: Final = DatabaseObservation(None)


@dataclass(frozen=True, slots=True)
class Member:
    """One VM of the group.

    ``source`` is the address that a replica streams from, ``address`` the one for clients; both are empty if there is
    none yet. ``available`` is True if its database accepts connections, ``leaving`` if it has a deletion timestamp,
    ``listed`` if it is in the read endpoint, ``has_invalid_mark`` if the time of its draining mark is in the future or
    unreadable. ``draining`` is the age of the drain, None without one. ``database`` is None if its agent does not
    respond, and ``silent`` for how long. ``busy_cores`` is the mean number of busy CPUs over ``GroupScaling.window``,
    None if unknown.
    """

    name: str
    uid: str
    role: Role
    ordinal: int
    created: str
    source: str = ""
    address: str = ""
    node: str = ""
    available: bool = False
    leaving: bool = False
    draining: Seconds | None = None
    has_invalid_mark: bool = False
    listed: bool = False
    database: DatabaseState | None = None
    silent: Seconds | None = None
    busy_cores: float | None = None

    @property
    def sessions(self) -> int:
        """Number of client sessions; 0 if unknown."""
        return self.database.sessions if self.database is not None else 0


def member_name(group: str, role: Role, ordinal: int = 0) -> str:
    """The name of a member's VM.

    >>> member_name("shop", Role.PRIMARY), member_name("shop", Role.REPLICA, 2)
    ('shop-primary', 'shop-replica-2')
    """
    return f"{group}-{role}" if role is Role.PRIMARY else f"{group}-{role}-{ordinal}"


def role_of(group: str, name: str) -> tuple[Role, int] | None:
    """Role and ordinal of the VM ``name``; None if it is not a member's name.

    >>> role_of("shop", "shop-replica-2"), role_of("shop", "shop-replica-02")
    ((<Role.REPLICA: 'replica'>, 2), None)
    """
    if name == member_name(group, Role.PRIMARY):
        return Role.PRIMARY, 0
    match = _REPLICA.fullmatch(name)
    return (Role.REPLICA, int(match["ordinal"])) if match is not None and match["group"] == group else None


def primary_of(members: Iterable[Member]) -> Member | None:
    """The primary that is not terminating; None if there is none."""
    return next((member for member in members if member.role is Role.PRIMARY and not member.leaving), None)


def replicas_of(members: Iterable[Member]) -> list[Member]:
    """The replicas, by ordinal."""
    return sorted((member for member in members if member.role is Role.REPLICA), key=lambda member: member.ordinal)
