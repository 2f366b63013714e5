"""VMs and read endpoint of a VirtualMachineGroup: encoding and decoding (pure).

- A member's VM is created from the template, with the group as owner, labels for group and role, and a preferred
  anti-affinity to other members.
- A replica gets its primary's address on the kernel command line, which every NeonVM passes to its guest.
- The headless Service ``GROUP-read`` leads to the serving replicas. A draining one stays in the EndpointSlice as
  ``terminating``, so that clients keep their connections, but not ``ready``, so that it gets no new ones.
"""

from __future__ import annotations

from typing import Final

from protocol.guest.sleep import is_asleep
from protocol.kubernetes.conditions import is_condition_true
from protocol.kubernetes.objects import (
    Json,
    JsonObject,
    annotations_of,
    child,
    controller_of,
    flag,
    is_terminating,
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
from scheduler_plugin.groups.core.replicas.members import DatabaseObservation, Member, Role, role_of
from scheduler_plugin.groups.objects.vm_group import VmGroup
from scheduler_plugin.groups.objects.writes import owner_reference

HOSTNAME: Final = "kubernetes.io/hostname"
_PREFERRED: Final = "preferredDuringSchedulingIgnoredDuringExecution"


def member_vm(group: VmGroup, new: NewMember) -> Json:
    """The VirtualMachine of a new member."""
    template = group.template if new.role is Role.PRIMARY else group.replica_template
    spec = child(template, "spec")
    guest = child(spec, "guest")
    # Keep the template's arguments.
    if new.source:
        words = [text(guest, "appendKernelCmdline"), f"{KERNEL_PRIMARY}={new.source}"]
        guest["appendKernelCmdline"] = " ".join(word for word in words if word)
    # Preferred, so that a full cluster still runs all members.
    affinity, anti_affinity = child(spec, "affinity"), child(spec, "affinity", "podAntiAffinity")
    others = {"matchLabels": {LABEL_GROUP: group.name.name}}
    term = {"weight": 100, "podAffinityTerm": {"topologyKey": HOSTNAME, "labelSelector": others}}
    spread = {**affinity, "podAntiAffinity": {**anti_affinity, _PREFERRED: [*items(anti_affinity, _PREFERRED), term]}}
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
        # First, so that the template can disable it.
        "spec": {"extraNetwork": {"enable": True}, **spec, "affinity": spread, "guest": guest},
    }


def _owner(group: VmGroup) -> Json:
    metadata = {"namespace": group.name.namespace, "name": group.name.name, "uid": group.uid}
    return owner_reference({"apiVersion": VM_GROUPS.api_version, "kind": VM_GROUPS.kind, "metadata": metadata})


def belongs_to(vm: JsonObject, group: VmGroup) -> bool:
    """Return True if the group controls the object."""
    return text(controller_of(vm), "uid") == group.uid


def is_impostor(vm: JsonObject, group: VmGroup) -> bool:
    """Return True if the VM has the primary's name but is not the primary in the status.

    A delayed request created it after the primary was deleted, so its database is empty.
    """
    is_primary = role_of(group.name.name, name_of(vm).name) == (Role.PRIMARY, 0)
    # If the status has no primary yet, any VM of that name may be it.
    return is_primary and group.primary_uid not in ("", uid_of(vm))


def read_member(
    vm: JsonObject, group: VmGroup, listed: frozenset[str], observation: DatabaseObservation, wall: float
) -> Member | None:
    """Decode ``vm`` as a member; None if its name is not a member's.

    ``listed`` are the UIDs in the read endpoint; ``wall`` is the present time in Unix seconds.
    """
    role = role_of(group.name.name, name_of(vm).name)
    if role is None:
        return None
    draining, has_invalid_mark = _draining(vm, wall)
    return Member(
        name=name_of(vm).name,
        uid=uid_of(vm),
        role=role[0],
        ordinal=role[1],
        created=text(vm, "metadata", "creationTimestamp"),
        source=source_of(vm),
        address=_address(vm),
        node=text(vm, "status", "node"),
        available=is_available(vm),
        leaving=is_terminating(vm),
        draining=draining,
        has_invalid_mark=has_invalid_mark,
        listed=uid_of(vm) in listed,
        database=observation.state,
        silent=None if is_asleep(vm) else observation.silent,
    )


def is_available(vm: JsonObject) -> bool:
    """Return True if the VM accepts connections."""
    # A sleeping VM wakes for a connection.
    return is_condition_true(vm, "Available") or is_asleep(vm)


def relevant_state(vm: JsonObject) -> object:
    """The part of a VM that matters to its group; its size and permit do not."""
    return (
        *(uid_of(vm), text(controller_of(vm), "uid"), text(vm, "metadata", "creationTimestamp"), is_terminating(vm)),
        *(source_of(vm), _address(vm), text(vm, "status", "podIP"), text(vm, "status", "node")),
        *(is_condition_true(vm, "Available"), is_asleep(vm), annotations_of(vm).get(ANNOTATION_DRAINING)),
    )


def _address(vm: JsonObject) -> str:
    """The member's address for clients: on the flat network, or else its pod's.

    Empty while a VM on the flat network has no address there: with its pod's address a primary would seem to have
    moved, and all replicas would be stale.
    """
    if flag(vm, "spec", "extraNetwork", "enable"):
        return text(vm, "status", "extraNetIP")
    return text(vm, "status", "extraNetIP") or text(vm, "status", "podIP")


def source_of(vm: JsonObject) -> str:
    """The primary's address on the VM's kernel command line; empty if none."""
    words = text(vm, "spec", "guest", "appendKernelCmdline").split()
    return next((word.partition("=")[2] for word in words if word.startswith(f"{KERNEL_PRIMARY}=")), "")


def _draining(vm: JsonObject, wall: float) -> tuple[Seconds | None, bool]:
    """Age of the drain (None without a mark), and whether the mark's time is in the future or unreadable.

    Such a mark counts as just set.
    """
    mark = annotations_of(vm).get(ANNOTATION_DRAINING)
    if mark is None:
        return None, False
    since = parse_timestamp(mark)
    return (Seconds(0.0), True) if since is None or since > wall else (Seconds(wall - since), False)


MANAGED_BY = "autoscale-groups"


def endpoint_name(group: ObjectName) -> ObjectName:
    """Name of the group's Service and EndpointSlice.

    >>> str(endpoint_name(ObjectName("default", "shop")))
    'default/shop-read'
    """
    return ObjectName(group.namespace, f"{group.name}-read")


def read_service(group: VmGroup) -> Json:
    """The headless Service. It has no selector, because the group writes the EndpointSlice."""
    return {
        "apiVersion": SERVICES.api_version,
        "kind": SERVICES.kind,
        "metadata": _metadata(group, {LABEL_GROUP: group.name.name}),
        "spec": {"clusterIP": "None", "type": "ClusterIP", "ports": [_port(group)]},
    }


def endpoint_slice(group: VmGroup, plan: GroupPlan) -> Json:
    """The EndpointSlice with the serving and draining replicas of ``plan``."""
    leaving = (entry.member for entry in plan.excluded if plan.drains(entry.member))
    # The API refuses an endpoint without address.
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


def listed_uids(obj: JsonObject) -> frozenset[str]:
    """UIDs of the VMs to which an EndpointSlice sends new clients."""
    offered = [endpoint for endpoint in items(obj, "endpoints") if child(endpoint, "conditions").get("ready") is True]
    return frozenset(text(endpoint, "targetRef", "uid") for endpoint in offered)


def differs(obj: JsonObject, desired: JsonObject) -> bool:
    """Return True if an EndpointSlice differs from the desired one."""
    return any(obj.get(key) != desired.get(key) for key in ("endpoints", "ports"))


def _metadata(group: VmGroup, labels: dict[str, str]) -> Json:
    name = endpoint_name(group.name)
    return {"name": name.name, "namespace": name.namespace, "labels": labels, "ownerReferences": [_owner(group)]}


def _port(group: VmGroup) -> Json:
    return {"name": "postgres", "port": group.port, "protocol": "TCP"}


def _endpoint(member: Member, group: VmGroup, ready: bool) -> Json:
    return {
        "addresses": [member.address],
        # No new clients for terminating endpoints.
        "conditions": {"ready": ready, "serving": True, "terminating": not ready},
        **({"nodeName": member.node} if member.node else {}),
        "targetRef": {
            "kind": VIRTUAL_MACHINES.kind,
            "namespace": group.name.namespace,
            "name": member.name,
            "uid": member.uid,
        },
    }
