"""The VMs of a VirtualMachineGroup, and its read endpoint: how they are made, and how they are read (pure).

- A member's VM is the template's with the group as its owner, labels that name group and role, and the wish to stand on
  another node than the others (preferred, so that a full cluster still runs them all).
- A replica gets the address of its primary on the kernel command line, which every NeonVM passes to its guest.
- Clients of the headless Service ``GROUP-read`` reach the replicas that serve. A draining one stays in its slice as
  ``terminating``, so that its clients keep their connections, and is not ``ready``, so that no new ones come.
"""

from __future__ import annotations

from typing import Final

from protocol.guest.sleep import is_asleep
from protocol.kubernetes.conditions import holds
from protocol.kubernetes.objects import (
    Json,
    JsonObject,
    annotations_of,
    child,
    controller_of,
    flag,
    is_leaving,
    items,
    name_of,
    text,
    uid_of,
)
from protocol.kubernetes.resources import ENDPOINT_SLICES, SERVICES, VIRTUAL_MACHINES, VM_GROUPS
from protocol.kubernetes.timestamps import parse_timestamp
from protocol.messages import ObjectName
from protocol.names import ANNOTATION_DRAINING, KERNEL_PRIMARY, LABEL_GROUP, LABEL_ROLE
from protocol.units import Seconds
from scheduler_plugin.groups.core.replicas.group_plan import GroupPlan, NewMember
from scheduler_plugin.groups.core.replicas.members import DatabaseLook, Member, Role, role_of
from scheduler_plugin.groups.objects.vm_group import VmGroup
from scheduler_plugin.groups.objects.writes import owner_reference

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
    # Preferred, not required, so that a full cluster still runs all members.
    affinity, apart = child(spec, "affinity"), child(spec, "affinity", "podAntiAffinity")
    others = {"matchLabels": {LABEL_GROUP: group.name.name}}
    term = {"weight": 100, "podAffinityTerm": {"topologyKey": HOSTNAME, "labelSelector": others}}
    spread = {**affinity, "podAntiAffinity": {**apart, _PREFERRED: [*items(apart, _PREFERRED), term]}}
    labels: Json = {**child(template, "metadata", "labels"), LABEL_GROUP: group.name.name, LABEL_ROLE: new.role.value}
    return {
        "apiVersion": VIRTUAL_MACHINES.api_version,
        "kind": VIRTUAL_MACHINES.kind,
        "metadata": {
            "name": new.name,
            "namespace": group.name.namespace,
            "labels": labels,
            "annotations": child(template, "metadata", "annotations"),
            "ownerReferences": [_owner(group)],
        },
        # First, so that the template can switch the extra network off.
        "spec": {"extraNetwork": {"enable": True}, **spec, "affinity": spread, "guest": guest},
    }


def _owner(group: VmGroup) -> Json:
    metadata = {"namespace": group.name.namespace, "name": group.name.name, "uid": group.uid}
    return owner_reference({"apiVersion": VM_GROUPS.api_version, "kind": VM_GROUPS.kind, "metadata": metadata})


def is_of(vm: JsonObject, group: VmGroup) -> bool:
    """Return True if the VM belongs to the group: the group is its controller."""
    return text(controller_of(vm), "uid") == group.uid


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
        # The first connection wakes one that sleeps.
        available=holds(vm, "Available") or is_asleep(vm),
        leaving=is_leaving(vm),
        draining=draining,
        misdated=misdated,
        listed=uid_of(vm) in listed,
        database=look.state,
        silent=None if is_asleep(vm) else look.silent,
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


MANAGED_BY = "autoscale-groups"


def endpoint_name(group: ObjectName) -> ObjectName:
    """The name of the Service and of its EndpointSlice.

    >>> str(endpoint_name(ObjectName("default", "shop")))
    'default/shop-read'
    """
    return ObjectName(group.namespace, f"{group.name}-read")


def read_service(group: VmGroup) -> Json:
    """The headless Service, without a selector, because only the slice says who serves."""
    return {
        "apiVersion": SERVICES.api_version,
        "kind": SERVICES.kind,
        "metadata": _metadata(group, {LABEL_GROUP: group.name.name}),
        "spec": {"clusterIP": "None", "type": "ClusterIP", "ports": [_port(group)]},
    }


def endpoint_slice(group: VmGroup, plan: GroupPlan) -> Json:
    """The slice that lists the replicas as ``plan`` has them."""
    leaving = (reasoned.member for reasoned in plan.held_back if plan.drains(reasoned.member))
    # Without an address it has no clients, and the API refuses a slice that names it.
    draining = [member for member in leaving if member.available and member.address]
    endpoints = [_endpoint(member, group, member in plan.serving) for member in (*plan.serving, *draining)]
    labels = {
        "kubernetes.io/service-name": endpoint_name(group.name).name,
        "endpointslice.kubernetes.io/managed-by": MANAGED_BY,
        LABEL_GROUP: group.name.name,
    }
    return {
        "apiVersion": ENDPOINT_SLICES.api_version,
        "kind": ENDPOINT_SLICES.kind,
        "metadata": _metadata(group, labels),
        "addressType": "IPv4",
        "endpoints": endpoints,
        "ports": [_port(group)],
    }


def listed_uids(found: JsonObject) -> frozenset[str]:
    """The UIDs of the VMs that a slice offers to new clients."""
    offered = [endpoint for endpoint in items(found, "endpoints") if child(endpoint, "conditions").get("ready") is True]
    return frozenset(text(endpoint, "targetRef", "uid") for endpoint in offered)


def differs(found: JsonObject, wanted: JsonObject) -> bool:
    """Return True if a slice differs from the wanted one."""
    return any(found.get(key) != wanted.get(key) for key in ("endpoints", "ports"))


def _metadata(group: VmGroup, labels: dict[str, str]) -> Json:
    name = endpoint_name(group.name)
    return {"name": name.name, "namespace": name.namespace, "labels": labels, "ownerReferences": [_owner(group)]}


def _port(group: VmGroup) -> Json:
    return {"name": "postgres", "port": group.port, "protocol": "TCP"}


def _endpoint(member: Member, group: VmGroup, ready: bool) -> Json:
    return {
        "addresses": [member.address],
        # Still serving, but terminating: no new client is sent there.
        "conditions": {"ready": ready, "serving": True, "terminating": not ready},
        **({"nodeName": member.node} if member.node else {}),
        "targetRef": {
            "kind": VIRTUAL_MACHINES.kind,
            "namespace": group.name.namespace,
            "name": member.name,
            "uid": member.uid,
        },
    }
