"""The read endpoint of a VirtualMachineGroup: a headless Service and its EndpointSlice (pure).

Clients of ``GROUP-read`` reach the replicas that serve. A draining one stays in the slice as ``terminating``, so that
its clients keep their connections, and is not ``ready``, so that no new ones come.
"""

from __future__ import annotations

from protocol.kubernetes.objects import Json, JsonObject, child, items, text
from protocol.kubernetes.resources import ENDPOINT_SLICES, SERVICES, VIRTUAL_MACHINES
from protocol.messages import ObjectName
from protocol.names import LABEL_GROUP
from scheduler_plugin.groups.core.replicas.group_plan import GroupPlan
from scheduler_plugin.groups.core.replicas.members import Member
from scheduler_plugin.groups.objects.group_members import owner_reference
from scheduler_plugin.groups.objects.vm_group import VmGroup

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
        "spec": {"clusterIP": "None", "type": "ClusterIP", "ports": _ports(group)},
    }


def endpoint_slice(group: VmGroup, plan: GroupPlan) -> Json:
    """The slice that lists the replicas as ``plan`` has them."""
    leaving = (reasoned.member for reasoned in plan.held_back if _goes(reasoned.member, plan))
    # Without an address it has no clients, and the API refuses a slice that names it.
    draining = [member for member in leaving if member.available and member.address]
    endpoints = [
        *(_endpoint(member, group, True) for member in plan.serving),
        *(_endpoint(member, group, False) for member in draining),
    ]
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
        "ports": _ports(group),
    }


def listed_uids(found: JsonObject) -> frozenset[str]:
    """The UIDs of the VMs that a slice offers to new clients."""
    offered = [endpoint for endpoint in items(found, "endpoints") if child(endpoint, "conditions").get("ready") is True]
    return frozenset(text(endpoint, "targetRef", "uid") for endpoint in offered)


def differs(found: JsonObject, wanted: JsonObject) -> bool:
    """Return True if a slice differs from the wanted one."""
    return any(found.get(key) != wanted.get(key) for key in ("endpoints", "ports"))


def _goes(member: Member, plan: GroupPlan) -> bool:
    return member.draining is not None or any(reasoned.member.name == member.name for reasoned in plan.drain)


def _metadata(group: VmGroup, labels: dict[str, str]) -> Json:
    name = endpoint_name(group.name)
    return {
        "name": name.name,
        "namespace": name.namespace,
        "labels": labels,
        "ownerReferences": [owner_reference(group)],
    }


def _ports(group: VmGroup) -> list[Json]:
    return [{"name": "postgres", "port": group.port, "protocol": "TCP"}]


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
