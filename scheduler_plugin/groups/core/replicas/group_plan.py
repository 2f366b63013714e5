"""The next steps for a group of VMs, from its present state (pure).

- Replicas get the lowest free numbers, once the primary has an address to stream from.
- First to leave: replicas of another address than the primary's, then those that do not serve, then those with the
  fewest sessions, then the newest. A draining one counts as gone, and returns before another one is created.

A replica leaves in steps: marked, out of the read endpoint, without clients, deleted.

    stays ── marked ──► drains ── no session, or grace and its transactions over ──► is deleted
      ▲                   │
      └── wanted again ───┘

The mark is an annotation of the VM, so that a restarted controller continues.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence, Set
from dataclasses import dataclass
from itertools import count, islice
from typing import Final

from protocol.guest.database import DatabaseState
from protocol.units import Seconds
from scheduler_plugin.groups import texts
from scheduler_plugin.groups.core.replicas.members import (
    GroupSpec,
    Member,
    Role,
    member_name,
    primary_of,
    replicas_of,
)

SETTLE: Final = Seconds(5.0)
"""How long clients may still connect that looked up the endpoint before it changed."""


@dataclass(frozen=True, slots=True)
class Drain:
    """Progress of a drain. ``look_again`` is when it may change; None once it is ``done``."""

    done: bool
    because: str
    look_again: Seconds | None = None


def drain(member: Member, age: Seconds, spec: GroupSpec) -> Drain:
    """Decide whether a replica that has drained for ``age`` may be deleted."""
    # No running database, no clients.
    if not member.available:
        return Drain(True, texts.NO_CLIENTS)
    # It still gets new clients.
    if member.listed:
        return Drain(False, texts.STILL_LISTED, _LOOK)
    if age >= spec.drain_timeout:
        return Drain(True, texts.DRAINED_LONG.format(timeout=spec.drain_timeout))
    if age < SETTLE:
        return Drain(False, texts.ADDRESS_KNOWN, _LOOK)
    if member.database is None:
        return Drain(False, texts.SESSIONS_UNKNOWN, _LOOK)
    return _asked(member.database, age, spec)


def _asked(database: DatabaseState, age: Seconds, spec: GroupSpec) -> Drain:
    if not database.sessions:
        return Drain(True, texts.NO_SESSION)
    if age < spec.grace:
        return Drain(False, texts.SESSIONS.format(sessions=database.sessions, age=age, grace=spec.grace), _LOOK)
    oldest = database.oldest_transaction
    # It began within the grace period, so it has until the timeout.
    if oldest is not None and oldest >= age - spec.grace:
        return Drain(False, texts.TRANSACTION_OPEN, _LOOK)
    return Drain(True, texts.GRACE_OVER.format(grace=spec.grace))


SILENCE: Final = Seconds(30.0)
"""How long the agent of a serving replica may not respond: it may be restarting."""

_LOOK: Final = Seconds(1.0)
_LEEWAY: Final = 2.0


def hindrances(replicas: Collection[Member], primary: Member | None, spec: GroupSpec) -> dict[str, str]:
    """Reasons why the read endpoint excludes replicas, by name; empty for listed ones."""
    reasons = {replica.name: hindrance(replica, primary, spec) for replica in replicas}
    silent = [replica for replica in replicas if not reasons[replica.name] and (replica.silent or 0.0) >= SILENCE]
    # If all are silent, they stay: stale reads are better than none.
    if len(silent) == sum(not why for why in reasons.values()):
        return reasons
    return reasons | {replica.name: texts.AGENT_SILENT for replica in silent}


def hindrance(member: Member, primary: Member | None, spec: GroupSpec) -> str:
    """The reason why the read endpoint excludes the replica, by itself; empty if it does not."""
    if member.leaving or member.draining is not None:
        return texts.LEAVES
    if not member.available:
        return texts.NOT_AVAILABLE
    if not member.address:
        return texts.NO_ADDRESS
    if member.database is None:
        # A silent one that served stays; `hindrances` checks for how long.
        return "" if member.listed else texts.AGENT_SILENT
    if not member.database.is_standby:
        return texts.NO_STANDBY
    return _why_behind(member, member.database, primary, spec)


def _why_behind(member: Member, database: DatabaseState, primary: Member | None, spec: GroupSpec) -> str:
    if not database.streaming:
        writable = primary is not None and primary.available
        # While the primary is away nothing is written, so a serving replica is not behind.
        return "" if member.listed and not writable else texts.NOT_STREAMING
    # Hysteresis: twice the bound for a serving replica, so that clients need not reconnect.
    bound = Seconds(spec.max_lag * (_LEEWAY if member.listed else 1.0))
    if database.lag is None:
        return "" if member.listed else texts.LAG_UNKNOWN
    return "" if database.lag <= bound else texts.TOO_FAR_BEHIND.format(bound=bound)


@dataclass(frozen=True, slots=True)
class NewMember:
    """A VM to create; a replica streams from ``source``."""

    name: str
    role: Role
    ordinal: int = 0
    source: str = ""


@dataclass(frozen=True, slots=True)
class Reasoned:
    """A member and a reason."""

    member: Member
    because: str


@dataclass(frozen=True, slots=True)
class GroupPlan:
    """Actions in the order of the fields: create VMs, remove and set marks, list ``serving`` in the read endpoint,
    delete VMs.

    ``held_back`` are replicas that the read endpoint excludes. ``fault`` is what people must fix, empty if nothing.
    ``look_again`` is when something may change without an event, None if nothing does.
    """

    create: tuple[NewMember, ...] = ()
    stay: tuple[Member, ...] = ()
    drain: tuple[Reasoned, ...] = ()
    serving: tuple[Member, ...] = ()
    delete: tuple[Reasoned, ...] = ()
    held_back: tuple[Reasoned, ...] = ()
    fault: str = ""
    look_again: Seconds | None = None

    def drains(self, member: Member) -> bool:
        """Return True if the member drains, or starts to."""
        return member.draining is not None or any(going.member.name == member.name for going in self.drain)


def plan_group(
    spec: GroupSpec, members: Sequence[Member], had_primary: bool, taken: Set[str] = frozenset()
) -> GroupPlan:
    """Actions due now; equal input gives equal output, for any order of ``members``.

    ``had_primary``: the group's status has one. ``taken`` are names of foreign VMs in the namespace.
    """
    primary = primary_of(members)
    if primary is not None:
        return _with_primary(spec, members, primary, taken)
    name = member_name(spec.name, Role.PRIMARY)
    # The name of a foreign VM: do not take it over.
    if name in taken:
        return GroupPlan(fault=texts.PRIMARY_TAKEN.format(name=name))
    if not members and not had_primary:
        return GroupPlan(create=(NewMember(name, Role.PRIMARY),))
    # Only the first primary is created: another would be an empty database.
    lost = texts.PRIMARY_LOST.format(name=name)
    return _with_consequences(spec, replicas_of(members), None, GroupPlan(fault=lost))


def _with_primary(spec: GroupSpec, members: Sequence[Member], primary: Member, taken: Set[str]) -> GroupPlan:
    replicas = replicas_of(members)
    present = [replica for replica in replicas if not replica.leaving]
    # A replica of an old address gets no more changes.
    following = [replica for replica in present if not is_stale(replica, primary)]
    staying = [replica for replica in following if replica.draining is None]
    missing = spec.replicas - len(staying)
    # Reuse draining replicas, which have the data.
    stay = best(replica for replica in following if replica.draining is not None)[: max(0, missing)]
    stale = [replica for replica in present if replica.draining is None and is_stale(replica, primary)]
    # Two stable sorts: among equal reasons and sessions the newest leaves first.
    newest = sorted(staying, key=lambda replica: (replica.created, replica.ordinal), reverse=True)
    reasons = hindrances(newest, primary, spec)
    leaving = sorted(newest, key=lambda replica: (not reasons[replica.name], replica.sessions))[: max(0, -missing)]
    surplus = texts.SURPLUS.format(replicas=len(staying), wanted=spec.replicas)
    going = [
        *(Reasoned(replica, texts.PRIMARY_MOVED) for replica in stale),
        *(Reasoned(replica, surplus) for replica in leaving),
    ]
    # A new replica copies from the primary, so it needs its address.
    create = islice(_new(spec.name, replicas, primary.address, taken), max(0, missing - len(stay)))
    return _with_consequences(spec, replicas, primary, GroupPlan(tuple(create), tuple(stay), tuple(going)))


def _with_consequences(
    spec: GroupSpec, replicas: Sequence[Member], primary: Member | None, todo: GroupPlan
) -> GroupPlan:
    """``todo`` with the serving replicas and the deletions that follow from it."""
    # A reason to leave takes precedence over one for not being listed.
    going = {reasoned.member.name: reasoned.because for reasoned in todo.drain}
    reasons = hindrances([replica for replica in replicas if replica.name not in going], primary, spec) | going
    staying = {member.name for member in todo.stay}
    # A future or unreadable mark proves nothing: set it again.
    misdated = [
        replica for replica in replicas if replica.misdated and not replica.leaving and replica.name not in staying
    ]
    marked = (*todo.drain, *(Reasoned(replica, texts.MISDATED) for replica in misdated))
    drains = [
        (replica, drain(replica, replica.draining, spec))
        for replica in replicas
        if replica.draining is not None and not replica.leaving and replica.name not in staying
    ]
    waits = [progress.look_again for _, progress in drains if progress.look_again is not None]
    # A database sends no events. Until it accepts connections only its VM changes, which does.
    waits += [_LOOK for replica in replicas if reasons[replica.name] and replica.available and not replica.leaving]
    return GroupPlan(
        create=todo.create,
        stay=todo.stay,
        drain=marked,
        serving=tuple(replica for replica in replicas if not reasons[replica.name]),
        delete=tuple(Reasoned(replica, progress.because) for replica, progress in drains if progress.done),
        held_back=tuple(Reasoned(replica, reasons[replica.name]) for replica in replicas if reasons[replica.name]),
        fault=todo.fault,
        look_again=min(waits, default=None),
    )


def is_stale(member: Member, primary: Member) -> bool:
    """Return True if a replica streams from another address than the primary's."""
    return bool(primary.address) and member.source != primary.address


def best(draining: Iterable[Member]) -> list[Member]:
    """Draining replicas, most useful first."""
    return sorted(
        draining, key=lambda replica: (not replica.available, -replica.sessions, replica.created, replica.ordinal)
    )


def _new(group: str, replicas: Iterable[Member], source: str, taken: Set[str]) -> Iterator[NewMember]:
    """New replicas with the lowest free numbers; none without a source."""
    used = {replica.ordinal for replica in replicas}
    # Endless; the caller limits it.
    for ordinal in count() if source else ():
        name = member_name(group, Role.REPLICA, ordinal)
        if ordinal not in used and name not in taken:
            yield NewMember(name, Role.REPLICA, ordinal, source)
