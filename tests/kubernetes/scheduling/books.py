"""The tests' own account of what is reserved: from objects of the API and nothing that the scheduler says (pure).

- A pod counts on its node until it is gone or has finished. One of a VM counts with all that the VM may use: its
  stored permit, its ``use``, and what its guest has; while the VM sleeps or wakes, its stored permit alone.
- The account is rebuilt at every revision of the API's store, so that what was wrong for a moment is seen as well.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from protocol.guest.sleep import is_asleep
from protocol.names import ANNOTATION_PERMIT, VM_KIND
from protocol.permits import decode_permit
from protocol.units import ZERO, Bytes, MilliCpu, Resources

Obj = dict[str, Any]
Books = dict[str, Resources]

PODS: Final = "pods"
VMS: Final = "virtualmachines"


@dataclass(frozen=True, slots=True)
class Seen:
    """One event of a watch."""

    revision: int
    plural: str
    is_deletion: bool
    found: Obj


@dataclass(frozen=True, slots=True)
class Held:
    """The permit that an agent held while its VM had the revisions ``first`` to ``last``."""

    vm: str
    permit: Resources
    first: int
    last: int


def use_of(vm: Obj) -> Resources:
    """``use`` in the spec."""
    guest = vm["spec"]["guest"]
    slot = Bytes.parse(str(guest["memorySlotSize"]))
    return Resources(MilliCpu.parse(str(guest["cpus"]["use"])), slot * int(guest["memorySlots"]["use"]))


def permit_of(vm: Obj) -> Resources:
    """The permit that is stored on the VM; nothing if there is none."""
    stored = vm["metadata"].get("annotations", {}).get(ANNOTATION_PERMIT)
    return ZERO if stored is None else decode_permit(stored)


def needs_of(vm: Obj) -> Resources:
    """All that the VM may use: while it sleeps or wakes, its permit."""
    if is_asleep(vm):
        return permit_of(vm)
    status = vm.get("status", {})
    has = Resources.parse(status["cpus"], status["memorySize"]) if "memorySize" in status else ZERO
    return use_of(vm).at_least(permit_of(vm)).at_least(has)


def requests_of(pod: Obj) -> Resources:
    """Requests of the containers."""
    asked = [each.get("resources", {}).get("requests", {}) for each in pod["spec"]["containers"]]
    return Resources.sum(Resources.parse(each.get("cpu", 0), each.get("memory", 0)) for each in asked)


def reserved(pods: Iterable[Obj], vms: Iterable[Obj]) -> Books:
    """Reservations of every node with pods."""
    by_uid, books = {vm["metadata"]["uid"]: vm for vm in vms}, Books()
    for pod in pods:
        node = pod["spec"].get("nodeName")
        if node is None or pod["status"].get("phase") in {"Succeeded", "Failed"}:
            continue
        owners = [each for each in pod["metadata"].get("ownerReferences", []) if each["kind"] == VM_KIND]
        vm = by_uid.get(owners[0]["uid"]) if owners else None
        size = requests_of(pod) if vm is None else requests_of(pod).at_least(needs_of(vm))
        books[node] = books.get(node, ZERO) + size
    return books


def overcommitted(history: Iterable[Seen], rooms: Mapping[str, Resources]) -> list[str]:
    """Every revision at which more was reserved on a node of ``rooms`` than it has for pods."""
    now: dict[str, dict[str, Obj]] = {PODS: {}, VMS: {}}
    found = []
    for seen in sorted(history, key=lambda each: each.revision):
        uid = seen.found["metadata"]["uid"]
        if seen.is_deletion:
            now[seen.plural].pop(uid, None)
        else:
            now[seen.plural][uid] = seen.found
        books = reserved(now[PODS].values(), now[VMS].values())
        found += [
            f"revision {seen.revision}: {total} on {node}, which has {rooms[node]}"
            for node, total in books.items()
            if node in rooms and not total.within(rooms[node])
        ]
    return found


def broken_promises(history: Iterable[Seen], held: Iterable[Held]) -> list[str]:
    """Every VM that was larger than its stored permit, or whose agent held more than what was stored."""
    versions: dict[str, list[tuple[int, Obj]]] = {}
    for seen in history:
        if seen.plural == VMS and not seen.is_deletion:
            versions.setdefault(seen.found["metadata"]["name"], []).append((seen.revision, seen.found))
    found = [
        f"revision {revision}: {vm} uses {use_of(each)}, permitted are {permit_of(each)}"
        for vm, known in versions.items()
        for revision, each in known
        if permit_of(each).any and not use_of(each).within(permit_of(each))
    ]
    for one in held:
        found += [
            f"revision {revision}: the agent of {one.vm} holds {one.permit}, stored are {permit_of(each)}"
            for revision, each in versions.get(one.vm, ())
            if one.first <= revision <= one.last and not one.permit.within(permit_of(each))
        ]
    return found
