"""Plans the next steps for a group of VMs from its present state (pure).

- Replicas get the lowest free numbers, once the primary has an address to stream from.
- Scaling down removes replicas in this order: those that stream from an old address of the primary, those that do not
  serve, those with the fewest sessions, the newest. A draining replica does not count; it is reused before a new one
  is created.

A replica is removed in steps: mark it, take it out of the read endpoint, wait for its clients, delete it.

    in service ── marked ──► draining ── no sessions, or grace period and transactions over ──► deleted
        ▲                       │
        └──── needed again ─────┘

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
"""How long clients may still connect after they looked up the endpoint before its change."""


@dataclass(frozen=True, slots=True)
class Drain:
    """Progress of a drain, and the reason."""

    done: bool
    reason: str


def drain(member: Member, age: Seconds, spec: GroupSpec) -> Drain:
    """Decide whether a replica that has drained for ``age`` may be deleted."""
    # No running database, no clients.
    if not member.available:
        return Drain(True, texts.NO_CLIENTS)
    # It still gets new clients.
    if member.listed:
        return Drain(False, texts.STILL_LISTED)
    if age >= spec.drain_timeout:
        return Drain(True, texts.DRAINED_LONG.format(timeout=spec.drain_timeout))
    if age < SETTLE:
        return Drain(False, texts.ADDRESS_KNOWN)
    if member.database is None:
        return Drain(False, texts.SESSIONS_UNKNOWN)
    return _by_sessions(member.database, age, spec)


def _by_sessions(database: DatabaseState, age: Seconds, spec: GroupSpec) -> Drain:
    if not database.sessions:
        return Drain(True, texts.NO_SESSION)
    if age < spec.grace:
        return Drain(False, texts.SESSIONS.format(sessions=database.sessions, age=age, grace=spec.grace))
    oldest = database.oldest_transaction
    # It began within the grace period, so it has until the timeout.
    if oldest is not None and oldest >= age - spec.grace:
        return Drain(False, texts.TRANSACTION_OPEN)
    return Drain(True, texts.GRACE_OVER.format(grace=spec.grace))


SILENCE: Final = Seconds(30.0)
"""How long the agent of a serving replica may not respond: it may be restarting."""

_POLL_INTERVAL: Final = Seconds(1.0)
_LEEWAY: Final = 2.0


def exclusion_reasons(replicas: Collection[Member], primary: Member | None, spec: GroupSpec) -> dict[str, str]:
    """Reasons for excluding replicas from the read endpoint, by name; empty for included ones."""
    reasons = {replica.name: exclusion_reason(replica, primary, spec) for replica in replicas}
    silent = [replica for replica in replicas if not reasons[replica.name] and (replica.silent or 0.0) >= SILENCE]
    # If all are silent, they stay: stale reads are better than none.
    if len(silent) == sum(not why for why in reasons.values()):
        return reasons
    return reasons | {replica.name: texts.AGENT_SILENT for replica in silent}


def exclusion_reason(member: Member, primary: Member | None, spec: GroupSpec) -> str:
    """The reason for excluding one replica from the read endpoint, without regard to the others; empty if none."""
    if member.leaving or member.draining is not None:
        return texts.LEAVES
    if not member.available:
        return texts.NOT_AVAILABLE
    if not member.address:
        return texts.NO_ADDRESS
    if member.database is None:
        # Keep a listed one; `exclusion_reasons` limits for how long.
        return "" if member.listed else texts.AGENT_SILENT
    if not member.database.is_standby:
        return texts.NO_STANDBY
    return _lag_reason(member, member.database, primary, spec)


def _lag_reason(member: Member, database: DatabaseState, primary: Member | None, spec: GroupSpec) -> str:
    if not database.streaming:
        writable = primary is not None and primary.available
        # While the primary is down nothing is written, so a serving replica is not behind.
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
class MemberWithReason:
    """A member, and why the plan drains, excludes or deletes it."""

    member: Member
    reason: str


@dataclass(frozen=True, slots=True)
class GroupPlan:
    """Actions, in the order of the fields: create VMs, remove and set draining marks, list ``serving`` in the read
    endpoint, delete VMs.

    ``excluded`` are replicas that are not in the read endpoint. ``fault`` is a problem that a user must fix, or empty.
    ``requeue_after`` is after how long to plan again, because something may change without an event, or None.
    """

    create: tuple[NewMember, ...] = ()
    undrain: tuple[Member, ...] = ()
    drain: tuple[MemberWithReason, ...] = ()
    serving: tuple[Member, ...] = ()
    delete: tuple[MemberWithReason, ...] = ()
    excluded: tuple[MemberWithReason, ...] = ()
    fault: str = ""
    requeue_after: Seconds | None = None

    def drains(self, member: Member) -> bool:
        """Return True if the member drains, or starts to."""
        return member.draining is not None or any(going.member.name == member.name for going in self.drain)


def plan_group(
    spec: GroupSpec, members: Sequence[Member], had_primary: bool, taken: Set[str] = frozenset()
) -> GroupPlan:
    """Plan the actions that are due now. The order of ``members`` does not matter.

    ``had_primary`` is True if the group's status records a primary. ``taken`` are names of other owners' VMs.
    """
    primary = primary_of(members)
    if primary is not None:
        return _with_primary(spec, members, primary, taken)
    name = member_name(spec.name, Role.PRIMARY)
    # Another owner's VM has the name: do not take it over.
    if name in taken:
        return GroupPlan(fault=texts.PRIMARY_TAKEN.format(name=name))
    if not members and not had_primary:
        return GroupPlan(create=(NewMember(name, Role.PRIMARY),))
    # Create a primary only once: a second one would be an empty database.
    lost = texts.PRIMARY_LOST.format(name=name)
    return _with_consequences(spec, replicas_of(members), None, GroupPlan(fault=lost))


def _with_primary(spec: GroupSpec, members: Sequence[Member], primary: Member, taken: Set[str]) -> GroupPlan:
    replicas = replicas_of(members)
    present = [replica for replica in replicas if not replica.leaving]
    # A replica that streams from an old address gets no more changes.
    following = [replica for replica in present if not is_stale(replica, primary)]
    staying = [replica for replica in following if replica.draining is None]
    missing = spec.replicas - len(staying)
    # Reuse draining replicas, which have the data.
    stay = most_useful_first(replica for replica in following if replica.draining is not None)[: max(0, missing)]
    stale = [replica for replica in present if replica.draining is None and is_stale(replica, primary)]
    # Two stable sorts: among equal reasons and sessions the newest leaves first.
    newest = sorted(staying, key=lambda replica: (replica.created, replica.ordinal), reverse=True)
    reasons = exclusion_reasons(newest, primary, spec)
    leaving = sorted(newest, key=lambda replica: (not reasons[replica.name], replica.sessions))[: max(0, -missing)]
    surplus = texts.SURPLUS.format(replicas=len(staying), desired=spec.replicas)
    going = [
        *(MemberWithReason(replica, texts.PRIMARY_MOVED) for replica in stale),
        *(MemberWithReason(replica, surplus) for replica in leaving),
    ]
    # A new replica copies from the primary, so it needs the primary's address.
    create = islice(_new(spec.name, replicas, primary.address, taken), max(0, missing - len(stay)))
    return _with_consequences(spec, replicas, primary, GroupPlan(tuple(create), tuple(stay), tuple(going)))


def _with_consequences(
    spec: GroupSpec, replicas: Sequence[Member], primary: Member | None, plan: GroupPlan
) -> GroupPlan:
    """Complete ``plan`` with the serving replicas and the deletions that follow from it."""
    # The reason for draining takes precedence over that for exclusion.
    going = {entry.member.name: entry.reason for entry in plan.drain}
    reasons = exclusion_reasons([replica for replica in replicas if replica.name not in going], primary, spec) | going
    staying = {member.name for member in plan.undrain}
    # A mark with a future or unreadable time says nothing about the age of the drain: set it again.
    has_invalid_mark = [
        replica
        for replica in replicas
        if replica.has_invalid_mark and not replica.leaving and replica.name not in staying
    ]
    marked = (*plan.drain, *(MemberWithReason(replica, texts.INVALID_MARK) for replica in has_invalid_mark))
    drains = [
        (replica, drain(replica, replica.draining, spec))
        for replica in replicas
        if replica.draining is not None and not replica.leaving and replica.name not in staying
    ]
    # A database sends no events, so poll it. Before it accepts connections only its VM changes, which sends events.
    polls = any(reasons[replica.name] and replica.available and not replica.leaving for replica in replicas)
    polls = polls or not all(progress.done for _, progress in drains)
    return GroupPlan(
        create=plan.create,
        undrain=plan.undrain,
        drain=marked,
        serving=tuple(replica for replica in replicas if not reasons[replica.name]),
        delete=tuple(MemberWithReason(replica, progress.reason) for replica, progress in drains if progress.done),
        excluded=tuple(
            MemberWithReason(replica, reasons[replica.name]) for replica in replicas if reasons[replica.name]
        ),
        fault=plan.fault,
        requeue_after=_POLL_INTERVAL if polls else None,
    )


def is_stale(member: Member, primary: Member) -> bool:
    """Return True if a replica streams from an old address of the primary."""
    return bool(primary.address) and member.source != primary.address


def most_useful_first(draining: Iterable[Member]) -> list[Member]:
    """Draining replicas, most useful first."""
    return sorted(
        draining, key=lambda replica: (not replica.available, -replica.sessions, replica.created, replica.ordinal)
    )


def _new(group: str, replicas: Iterable[Member], source: str, taken: Set[str]) -> Iterator[NewMember]:
    """Yield new replicas with the lowest free numbers, without end; none without a source."""
    used = {replica.ordinal for replica in replicas}
    for ordinal in count() if source else ():
        name = member_name(group, Role.REPLICA, ordinal)
        if ordinal not in used and name not in taken:
            yield NewMember(name, Role.REPLICA, ordinal, source)
