"""The desired group of VMs and its actual members (pure).

- A member is identified by name and owner: ``GROUP-primary``, ``GROUP-replica-0`` and so on. The name alone gives its
  role, so a restarted controller finds earlier members and creates none twice.
- Times are ages in seconds when the members were read.
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

    ``replicas`` counts read replicas, without the primary. ``max_lag`` is the maximum lag of a serving replica. A
    draining replica has ``grace`` to lose its sessions; transactions that began within it have until ``drain_timeout``,
    counted from the same time.
    """

    name: str
    replicas: int
    max_lag: Seconds = Seconds(10.0)
    grace: Seconds = Seconds(30.0)
    drain_timeout: Seconds = Seconds(600.0)


@dataclass(frozen=True, slots=True)
class DatabaseLook:
    """Last query of a database: its result, None if none, and for how long there has been none."""

    state: DatabaseState | None
    silent: Seconds | None = None


UNASKED: Final = DatabaseLook(None)


@dataclass(frozen=True, slots=True)
class Member:
    """One VM of the group.

    ``source`` is the address that a replica streams from, ``address`` the one for clients, empty if none yet.
    ``available``: its database accepts connections. ``leaving``: it has a deletion timestamp. ``draining`` is for how
    long it has been draining, None if it stays; ``misdated``: its mark is in the future or unreadable. ``listed``: the
    read endpoint has it. ``database`` is None if its agent does not respond; ``silent`` is for how long, None if it
    does. ``busy_cores`` is the mean number of busy CPUs over ``GroupScaling.window``; None if unknown.
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
    misdated: bool = False
    listed: bool = False
    database: DatabaseState | None = None
    silent: Seconds | None = None
    busy_cores: float | None = None

    @property
    def sessions(self) -> int:
        """Number of its clients; 0 if unknown."""
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
    """The primary, if there is one that is not terminating."""
    return next((member for member in members if member.role is Role.PRIMARY and not member.leaving), None)


def replicas_of(members: Iterable[Member]) -> list[Member]:
    """The replicas, by ordinal."""
    return sorted((member for member in members if member.role is Role.REPLICA), key=lambda member: member.ordinal)
