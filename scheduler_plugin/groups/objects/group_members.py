"""The VMs of a VirtualMachineGroup: how they are made, and how a member is read from its VM (pure).

- A member's VM is the template's with the group as its owner, labels that name group and role, and the wish to stand on
  another node than the others (preferred, so that a full cluster still runs them all).
- A replica gets the address of its primary on the kernel command line, which every NeonVM passes to its guest.
"""

from __future__ import annotations

from typing import Final

from protocol.kubernetes.objects import (
    Json,
    JsonObject,
    annotations_of,
    child,
    flag,
    is_leaving,
    items,
    name_of,
    text,
    uid_of,
)
from protocol.kubernetes.resources import VIRTUAL_MACHINES, VM_GROUPS
from protocol.kubernetes.timestamps import parse_timestamp
from protocol.names import ANNOTATION_DRAINING, KERNEL_PRIMARY, LABEL_GROUP, LABEL_ROLE
from protocol.units import Seconds
from scheduler_plugin.groups.core.replicas.group_plan import NewMember
from scheduler_plugin.groups.core.replicas.members import DatabaseLook, Member, Role, role_of
from scheduler_plugin.groups.objects.vm_group import VmGroup

HOSTNAME: Final = "kubernetes.io/hostname"
_PREFERRED: Final = "preferredDuringSchedulingIgnoredDuringExecution"


def member_vm(group: VmGroup, new: NewMember) -> Json:
    """The VirtualMachine of a new member."""
    template = group.template if new.role is Role.PRIMARY else group.replica_template
    spec = child(template, "spec")
    guest = child(spec, "guest")
    # Appended, so that the template's own arguments stay.
    if new.source:
        words = [text(guest, "appendKernelCmdline"), f"{KERNEL_PRIMARY}={new.source}"]
        guest["appendKernelCmdline"] = " ".join(word for word in words if word)
    labels: Json = {**child(template, "metadata", "labels"), **member_labels(group, new.role)}
    return {
        "apiVersion": VIRTUAL_MACHINES.api_version,
        "kind": VIRTUAL_MACHINES.kind,
        "metadata": {
            "name": new.name,
            "namespace": group.name.namespace,
            "labels": labels,
            "annotations": child(template, "metadata", "annotations"),
            "ownerReferences": [owner_reference(group)],
        },
        # First, so that the template can switch the extra network off.
        "spec": {"extraNetwork": {"enable": True}, **spec, "affinity": _spread(group, spec), "guest": guest},
    }


def member_labels(group: VmGroup, role: Role) -> Json:
    """Labels that select the VMs of that role, and their pods."""
    return {LABEL_GROUP: group.name.name, LABEL_ROLE: role.value}


def owner_reference(group: VmGroup) -> Json:
    """The reference that makes the group the owner of an object, as ``ownership.owner_reference``."""
    return {
        "apiVersion": VM_GROUPS.api_version,
        "kind": VM_GROUPS.kind,
        "name": group.name.name,
        "uid": group.uid,
        "controller": True,
    }


def _spread(group: VmGroup, spec: JsonObject) -> Json:
    # Preferred, not required, so that a full cluster still runs all members.
    affinity, apart = child(spec, "affinity"), child(spec, "affinity", "podAntiAffinity")
    others = {"matchLabels": {LABEL_GROUP: group.name.name}}
    term = {"weight": 100, "podAffinityTerm": {"topologyKey": HOSTNAME, "labelSelector": others}}
    return {**affinity, "podAntiAffinity": {**apart, _PREFERRED: [*items(apart, _PREFERRED), term]}}


def is_of(vm: JsonObject, group: VmGroup) -> bool:
    """Return True if the VM belongs to the group: the group is its controller."""
    owners = [owner for owner in items(vm, "metadata", "ownerReferences") if owner.get("controller") is True]
    return any(text(owner, "uid") == group.uid for owner in owners)


def is_impostor(vm: JsonObject, group: VmGroup) -> bool:
    """Return True if the VM has the primary's name and is not the primary that the status remembers.

    A creation that arrived late, after the primary was gone, made it: its database is empty, so nothing must follow it.
    """
    is_primary = role_of(group.name.name, name_of(vm).name) == (Role.PRIMARY, 0)
    # Until the status remembers a primary, any VM of that name may be it.
    return is_primary and group.primary_uid not in ("", uid_of(vm))


def read_member(
    vm: JsonObject, group: VmGroup, listed: frozenset[str], look: DatabaseLook, wall: float
) -> Member | None:
    """The member that ``vm`` is; None if its name is not a member's.

    ``listed`` are the UIDs of the VMs that the read endpoint has; ``wall`` is the present in seconds since 1970.
    """
    role = role_of(group.name.name, name_of(vm).name)
    if role is None:
        return None
    conditions = [
        text(condition, "status")
        for condition in items(vm, "status", "conditions")
        if text(condition, "type") == "Available"
    ]
    draining, misdated = _draining(vm, wall)
    return Member(
        name=name_of(vm).name,
        uid=uid_of(vm),
        role=role[0],
        ordinal=role[1],
        created=text(vm, "metadata", "creationTimestamp"),
        source=source_of(vm),
        address=_address(vm),
        node=text(vm, "status", "node"),
        available=conditions == ["True"],
        leaving=is_leaving(vm),
        draining=draining,
        misdated=misdated,
        listed=uid_of(vm) in listed,
        database=look.state,
        silent=look.silent,
    )


def _address(vm: JsonObject) -> str:
    """Address of the member for clients: on the flat network, or that of its pod if it is on none.

    A VM on the flat network whose address is unknown has none: with its pod's address instead, a primary would seem to
    have moved, and every replica would turn stale at once.
    """
    if flag(vm, "spec", "extraNetwork", "enable"):
        return text(vm, "status", "extraNetIP")
    return text(vm, "status", "extraNetIP") or text(vm, "status", "podIP")


def source_of(vm: JsonObject) -> str:
    """The address of the primary on the VM's kernel command line; empty if there is none."""
    words = text(vm, "spec", "guest", "appendKernelCmdline").split()
    return next((word.partition("=")[2] for word in words if word.startswith(f"{KERNEL_PRIMARY}=")), "")


def _draining(vm: JsonObject, wall: float) -> tuple[Seconds | None, bool]:
    """For how long the VM has been about to leave, and whether its mark is in the future or unreadable.

    Such a mark counts as set now, until it is set again.
    """
    mark = annotations_of(vm).get(ANNOTATION_DRAINING)
    if mark is None:
        return None, False
    since = parse_timestamp(mark)
    return (Seconds(0.0), True) if since is None or since > wall else (Seconds(wall - since), False)
