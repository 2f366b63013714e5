"""What to do about a group of VMs now, decided from its present state alone (pure).

- Replicas are made under the lowest free numbers, once the primary has an address to stream from.
- First to leave: those that follow another address than the primary's, then those that do not serve, then those with
  the fewest sessions, then the newest. One that drains counts as gone, and returns before another one is made.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass
from itertools import count, islice

from protocol.units import Seconds
from scheduler_plugin.groups.core.replicas.draining import drain
from scheduler_plugin.groups.core.replicas.members import (
    GroupSpec,
    Member,
    Role,
    member_name,
    primary_of,
    replicas_of,
)
from scheduler_plugin.groups.core.replicas.serving import hindrances


@dataclass(frozen=True, slots=True)
class NewMember:
    """A VM to be made; a replica streams from ``source``."""

    name: str
    role: Role
    ordinal: int = 0
    source: str = ""


@dataclass(frozen=True, slots=True)
class Reasoned:
    """A member and the reason for what happens to it."""

    member: Member
    because: str


@dataclass(frozen=True, slots=True)
class GroupPlan:
    """The actions due, in the order of the fields: VMs are made, marks are taken back and set, the read endpoint lists
    ``serving``, and VMs are deleted.

    ``held_back`` are the replicas that the read endpoint does not list. ``fault`` says what people have to fix, empty
    if nothing is wrong. ``look_again``: something may have changed by that time without an event.
    """

    create: tuple[NewMember, ...] = ()
    stay: tuple[Member, ...] = ()
    drain: tuple[Reasoned, ...] = ()
    serving: tuple[Member, ...] = ()
    delete: tuple[Reasoned, ...] = ()
    held_back: tuple[Reasoned, ...] = ()
    fault: str = ""
    look_again: Seconds | None = None


def plan_group(
    spec: GroupSpec, members: Sequence[Member], had_primary: bool, taken: Set[str] = frozenset()
) -> GroupPlan:
    """The actions due now; equal input has equal output, whatever the order of ``members``.

    ``had_primary``: the group's status remembers one. ``taken`` are the names of VMs in the namespace that are not
    the group's.
    """
    primary = primary_of(members)
    if primary is not None:
        return _with_primary(spec, members, primary, taken)
    name = member_name(spec.name, Role.PRIMARY)
    # A name that a VM outside the group has is never used: the group would take over a stranger.
    if name in taken:
        return GroupPlan(fault=f"a VirtualMachine {name} exists that does not belong to this group")
    if not members and not had_primary:
        return GroupPlan(create=(NewMember(name, Role.PRIMARY),))
    # Only the first primary is ever created: another one would be an empty database, so people decide.
    lost = f"VM {name} is gone, and a new one would be an empty database: delete the group to start over"
    return _settled(spec, replicas_of(members), None, GroupPlan(fault=lost))


def _with_primary(spec: GroupSpec, members: Sequence[Member], primary: Member, taken: Set[str]) -> GroupPlan:
    replicas = replicas_of(members)
    present = [replica for replica in replicas if not replica.leaving]
    # A replica that follows an old address of the primary gets no more changes.
    following = [replica for replica in present if not is_stale(replica, primary)]
    staying = [replica for replica in following if replica.draining is None]
    missing = spec.replicas - len(staying)
    # Draining replicas come back before a new one is created: they already have the data.
    stay = best(replica for replica in following if replica.draining is not None)[: max(0, missing)]
    surplus = f"{len(staying)} replicas are more than the {spec.replicas} that are wanted"
    going = [
        *(
            Reasoned(replica, "the primary has another address now")
            for replica in present
            if _turns_stale(replica, primary)
        ),
        *(Reasoned(replica, surplus) for replica in leaving_order(staying, primary, spec)[: max(0, -missing)]),
    ]
    # A new replica takes its whole copy from the primary, so there is none without an address.
    create = islice(_new(spec.name, replicas, primary.address, taken), max(0, missing - len(stay)))
    return _settled(spec, replicas, primary, GroupPlan(tuple(create), tuple(stay), tuple(going)))


def _settled(spec: GroupSpec, replicas: Sequence[Member], primary: Member | None, todo: GroupPlan) -> GroupPlan:
    """``todo`` with what follows from it: which replicas serve, and which can be deleted."""
    # A reason to leave wins over one for not being listed.
    going = {reasoned.member.name: reasoned.because for reasoned in todo.drain}
    reasons = hindrances([replica for replica in replicas if replica.name not in going], primary, spec) | going
    staying = {member.name for member in todo.stay}
    # A mark in the future, or an unreadable one, proves nothing: it is set again, and its time starts then.
    misdated = [
        replica for replica in replicas if replica.misdated and not replica.leaving and replica.name not in staying
    ]
    marked = (*todo.drain, *(Reasoned(replica, "its mark had no time that has come") for replica in misdated))
    drains = [
        (replica, drain(replica, replica.draining, spec))
        for replica in replicas
        if replica.draining is not None and not replica.leaving and replica.name not in staying
    ]
    waits = [progress.look_again for _, progress in drains if progress.look_again is not None]
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
    """Return True if a replica follows an address other than the primary's."""
    return bool(primary.address) and member.source != primary.address


def _turns_stale(member: Member, primary: Member) -> bool:
    return member.draining is None and is_stale(member, primary)


def leaving_order(staying: Iterable[Member], primary: Member, spec: GroupSpec) -> list[Member]:
    """Replicas in the order in which they leave."""
    # Two stable sorts: within equal reasons and sessions the newest leaves first.
    newest = sorted(staying, key=lambda replica: (replica.created, replica.ordinal), reverse=True)
    reasons = hindrances(newest, primary, spec)
    return sorted(newest, key=lambda replica: (not reasons[replica.name], replica.sessions))


def best(draining: Iterable[Member]) -> list[Member]:
    """Replicas that drain, the one that is most worth having back first."""
    return sorted(
        draining, key=lambda replica: (not replica.available, -replica.sessions, replica.created, replica.ordinal)
    )


def _new(group: str, replicas: Iterable[Member], source: str, taken: Set[str]) -> Iterator[NewMember]:
    """New replicas under the lowest free numbers; none if there is nothing to stream from."""
    used = {replica.ordinal for replica in replicas}
    # An endless count; the caller takes as many as are missing.
    for ordinal in count() if source else ():
        name = member_name(group, Role.REPLICA, ordinal)
        if ordinal not in used and name not in taken:
            yield NewMember(name, Role.REPLICA, ordinal, source)
