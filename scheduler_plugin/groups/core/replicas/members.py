"""A group of VMs as it is wanted, and its members as they are (pure).

- A member is known by its name and its owner: ``GROUP-primary``, ``GROUP-replica-0`` and so on. The name alone says its
  role, so a controller that starts again finds what its predecessor made, and never makes it twice.
- Times are ages in seconds, as of the moment at which the members were looked at.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from protocol.units import Seconds

# No leading zeros: each member has exactly one name.
_REPLICA: Final = re.compile(r"(?P<group>.+)-replica-(?P<ordinal>0|[1-9][0-9]{0,5})")


class Role(StrEnum):
    """Role of a member: the one primary takes writes, replicas serve reads."""

    PRIMARY = "primary"
    REPLICA = "replica"


@dataclass(frozen=True, slots=True)
class GroupSpec:
    """A group as it is wanted (``spec`` of a VirtualMachineGroup).

    ``replicas`` counts read replicas; the primary comes on top. ``max_lag`` is how far a replica that serves may be
    behind. A replica that leaves has ``grace`` to lose its sessions; transactions that began within it have until
    ``drain_timeout``, counted from the same moment.
    """

    name: str
    replicas: int
    max_lag: Seconds = Seconds(10.0)
    grace: Seconds = Seconds(30.0)
    drain_timeout: Seconds = Seconds(600.0)


@dataclass(frozen=True, slots=True)
class DatabaseState:
    """Status of a member's database.

    ``streaming``: it receives the primary's changes at this moment. ``lag`` is how far it is behind what it received;
    None if that is not known. ``sessions`` counts clients; ``oldest_transaction`` is the age of the oldest
    transaction that one of them has open, None if none is.
    """

    is_standby: bool
    streaming: bool = False
    lag: Seconds | None = None
    sessions: int = 0
    oldest_transaction: Seconds | None = None


@dataclass(frozen=True, slots=True)
class DatabaseLook:
    """The last look at a database: its answer, None if it gave none, and for how long it has given none."""

    state: DatabaseState | None
    silent: Seconds | None = None


UNASKED: Final = DatabaseLook(None)


@dataclass(frozen=True, slots=True)
class Member:
    """One VM of the group as it is.

    ``source`` is the address that a replica streams from. ``address`` is where clients reach it, empty before it has
    one. ``available``: its database accepts connections. ``leaving``: its deletion has begun. ``draining`` is since
    when it has been about to leave, None if it stays; ``misdated``: its mark is in the future or unreadable.
    ``listed``: the read endpoint has it now. ``database`` is None if it cannot be asked at the moment; ``silent`` is
    for how long that has been so, None if it answered.
    ``busy_cores`` is how many of its CPUs were busy over ``GroupScaling.window``; None if that is not known.
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
        """The number of its clients, if known."""
        return self.database.sessions if self.database is not None else 0


def member_name(group: str, role: Role, ordinal: int = 0) -> str:
    """The name of a member's VM.

    >>> member_name("shop", Role.PRIMARY), member_name("shop", Role.REPLICA, 2)
    ('shop-primary', 'shop-replica-2')
    """
    return f"{group}-{role}" if role is Role.PRIMARY else f"{group}-{role}-{ordinal}"


def role_of(group: str, name: str) -> tuple[Role, int] | None:
    """Role and ordinal of the VM called ``name``; None if no member of ``group`` is called so.

    >>> role_of("shop", "shop-replica-2"), role_of("shop", "shop-replica-02")
    ((<Role.REPLICA: 'replica'>, 2), None)
    """
    if name == member_name(group, Role.PRIMARY):
        return Role.PRIMARY, 0
    match = _REPLICA.fullmatch(name)
    return (Role.REPLICA, int(match["ordinal"])) if match is not None and match["group"] == group else None


def primary_of(members: Iterable[Member]) -> Member | None:
    """The primary, if there is one that is not being deleted."""
    return next((member for member in members if member.role is Role.PRIMARY and not member.leaving), None)


def replicas_of(members: Iterable[Member]) -> list[Member]:
    """The replicas, by their ordinals."""
    return sorted((member for member in members if member.role is Role.REPLICA), key=lambda member: member.ordinal)
