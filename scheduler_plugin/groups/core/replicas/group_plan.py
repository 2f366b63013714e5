"""What to do about a group of VMs now, decided from what is true now alone (pure).

- The primary is made once and is never taken: where it is gone, another would be an empty database, so people decide.
- Replicas are made under the lowest free numbers, once the primary has an address to stream from.
- First to leave: those that follow another address than the primary's, then those that do not serve, then those with
  the fewest sessions, then the newest. One that drains counts as gone, and returns before another one is made.
- A name that another object has is not used.
- A mark that lies ahead proves nothing: it is set again, and its time counts from then on.
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
    """A member, and why it is spoken of."""

    member: Member
    because: str


@dataclass(frozen=True, slots=True)
class GroupPlan:
    """The actions due, in the order of the fields: VMs are made, marks are taken back and set, the read endpoint lists
    ``serving``, and VMs are deleted.

    ``held_back`` are the replicas that the read endpoint does not list. ``fault`` says what people have to mend, empty
    where nothing is wrong. ``look_again``: something may have changed then without an event.
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
    if name in taken:
        return GroupPlan(fault=f"a VirtualMachine {name} exists that does not belong to this group")
    if not members and not had_primary:
        return GroupPlan(create=(NewMember(name, Role.PRIMARY),))
    lost = f"VM {name} is gone, and a new one would be an empty database: delete the group to start over"
    return _settled(spec, replicas_of(members), None, GroupPlan(fault=lost))


def _with_primary(spec: GroupSpec, members: Sequence[Member], primary: Member, taken: Set[str]) -> GroupPlan:
    replicas = replicas_of(members)
    present = [each for each in replicas if not each.leaving]
    following = [each for each in present if not is_stale(each, primary)]
    staying = [each for each in following if each.draining is None]
    missing = spec.replicas - len(staying)
    stay = best(each for each in following if each.draining is not None)[: max(0, missing)]
    many = f"{len(staying)} replicas are more than the {spec.replicas} that are wanted"
    going = [
        *(Reasoned(each, "the primary has another address now") for each in present if _turns_stale(each, primary)),
        *(Reasoned(each, many) for each in leaving_order(staying, primary, spec)[: max(0, -missing)]),
    ]
    create = islice(_new(spec.name, replicas, primary.address, taken), max(0, missing - len(stay)))
    return _settled(spec, replicas, primary, GroupPlan(tuple(create), tuple(stay), tuple(going)))


def _settled(spec: GroupSpec, replicas: Sequence[Member], primary: Member | None, todo: GroupPlan) -> GroupPlan:
    """``todo`` with what follows from it: who serves, and who can be deleted."""
    going = {each.member.name: each.because for each in todo.drain}
    reasons = hindrances([each for each in replicas if each.name not in going], primary, spec) | going
    staying = {each.name for each in todo.stay}
    misdated = [each for each in replicas if each.misdated and not each.leaving and each.name not in staying]
    marked = (*todo.drain, *(Reasoned(each, "its mark had no time that has come") for each in misdated))
    drains = [
        (each, drain(each, each.draining, spec))
        for each in replicas
        if each.draining is not None and not each.leaving and each.name not in staying
    ]
    waits = [found.look_again for _, found in drains if found.look_again is not None]
    return GroupPlan(
        create=todo.create,
        stay=todo.stay,
        drain=marked,
        serving=tuple(each for each in replicas if not reasons[each.name]),
        delete=tuple(Reasoned(each, found.because) for each, found in drains if found.done),
        held_back=tuple(Reasoned(each, reasons[each.name]) for each in replicas if reasons[each.name]),
        fault=todo.fault,
        look_again=min(waits, default=None),
    )


def is_stale(member: Member, primary: Member) -> bool:
    """Return True if a replica follows an address that is not the primary's any more."""
    return bool(primary.address) and member.source != primary.address


def _turns_stale(member: Member, primary: Member) -> bool:
    return member.draining is None and is_stale(member, primary)


def leaving_order(staying: Iterable[Member], primary: Member, spec: GroupSpec) -> list[Member]:
    """Replicas in the order in which they leave."""
    newest = sorted(staying, key=lambda each: (each.created, each.ordinal), reverse=True)
    reasons = hindrances(newest, primary, spec)
    return sorted(newest, key=lambda each: (not reasons[each.name], each.sessions))


def best(draining: Iterable[Member]) -> list[Member]:
    """Replicas that drain, the one first that is most worth having back."""
    return sorted(draining, key=lambda each: (not each.available, -each.sessions, each.created, each.ordinal))


def _new(group: str, replicas: Iterable[Member], source: str, taken: Set[str]) -> Iterator[NewMember]:
    """New replicas under the lowest free numbers; none if there is nothing to stream from."""
    used = {each.ordinal for each in replicas}
    for ordinal in count() if source else ():
        name = member_name(group, Role.REPLICA, ordinal)
        if ordinal not in used and name not in taken:
            yield NewMember(name, Role.REPLICA, ordinal, source)
