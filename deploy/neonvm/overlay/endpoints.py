"""The owners of the flat network's addresses, and the nodes on which each may be (pure).

All of it comes from what the controller and administrators write: claims (IPAddress objects), and the status of VMs and
migrations. Nothing that a tenant writes counts, except for the claim of their own VM.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Final

from deploy.neonvm.objects.vm_spec import is_under_way, vm_of
from deploy.neonvm.remote.address_choice import LABEL_CLAIM, owner_of
from protocol.kubernetes.objects import Json, JsonObject, child, items, labels_of, name_of, text, uid_of
from protocol.kubernetes.resources import IP_ADDRESSES, MIGRATIONS, NODES, VIRTUAL_MACHINES
from protocol.messages import ObjectName
from protocol.names import LABEL_VM_NAME

LABEL_CLIENT: Final = "autoscaling.neon.tech/flat-network-client"
"""On an IPAddress whose parent is a node: an administrator has plugged in a client with this address there."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One address. ``nodes`` are where its frames may come from, by name, the present one first. ``namespace`` is its
    VM's; empty for a client, which all namespaces may talk to.
    """

    address: str
    namespace: str
    nodes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class FlatObjects:
    """The cluster's objects as far as they matter here. Keys of ``vms`` and ``claims`` are their names."""

    claims: Mapping[ObjectName, Json]
    vms: Mapping[ObjectName, Json]
    migrations: Iterable[Json]


def client_claim(address: str, node: str) -> Json:
    """The IPAddress that lets a client on the bridge of ``node`` have ``address``."""
    return {
        "apiVersion": IP_ADDRESSES.api_version,
        "kind": IP_ADDRESSES.kind,
        "metadata": {"name": address, "labels": {LABEL_CLIENT: "true"}},
        "spec": {"parentRef": {"resource": NODES.plural, "name": node}},
    }


def is_v4(address: str) -> bool:
    """Return True for an IPv4 address."""
    try:
        return ip_address(address).version == 4
    except ValueError:
        return False


def endpoints(objects: FlatObjects) -> list[Endpoint]:
    """All addresses in use. A VM that moves may be on the migration's source and on its target."""
    moving: dict[ObjectName, list[str]] = {}
    for migration in filter(is_under_way, objects.migrations):
        # During a move both ends may send: the source until it stops, the target from its first announcement on.
        ends = [text(migration, "status", end) for end in ("sourceNode", "targetNode")]
        moving.setdefault(vm_of(migration), []).extend(ends)
    all_endpoints = []
    for name, claim in objects.claims.items():
        if node := _client_node(claim):
            # A client on a bridge belongs to no namespace.
            all_endpoints.append(Endpoint(name.name, "", (node,)))
            continue
        owner, uid = owner_of(claim)
        vm = objects.vms.get(owner, {})
        # The uid tells a VM from an earlier one of the same name, whose claim may still be there.
        if uid and uid_of(vm) == uid and text(vm, "status", "extraNetIP") == name.name:
            # A dict keeps the order and drops duplicates: the VM's own node comes first.
            nodes = dict.fromkeys(filter(None, (text(vm, "status", "node"), *moving.get(owner, []))))
            all_endpoints.append(Endpoint(name.name, owner.namespace, tuple(nodes)))
    return [endpoint for endpoint in all_endpoints if is_v4(endpoint.address)]


def _client_node(claim: Json) -> str:
    """The node of a client; empty if the claim is not a client's. Our controller may claim addresses for VMs alone."""
    parent = child(claim, "spec", "parentRef")
    is_client = labels_of(claim).get(LABEL_CLIENT) == "true" and not text(parent, "group")
    return text(parent, "name") if is_client and text(parent, "resource") == NODES.plural else ""


def rightful_address(pod: Json, objects: FlatObjects) -> str:
    """The address that ``pod`` may have; empty if none. A pod is believed to run a VM if the VM's status names it, or
    that of a migration of it that is under way.
    """
    # The pod's labels and owners must agree with the VM, but prove nothing: whoever may make pods writes them.
    pod_name = name_of(pod)
    name = ObjectName(pod_name.namespace, labels_of(pod).get(LABEL_VM_NAME, ""))
    vm = objects.vms.get(name, {})
    moves = [move for move in objects.migrations if is_under_way(move) and vm_of(move) == name]
    rightful_owners = {
        (MIGRATIONS.kind, uid_of(move)) for move in moves if text(move, "status", "targetPodName") == pod_name.name
    }
    if text(vm, "status", "podName") == pod_name.name:
        rightful_owners.add((VIRTUAL_MACHINES.kind, uid_of(vm)))
    owners = {(text(owner, "kind"), text(owner, "uid")) for owner in items(pod, "metadata", "ownerReferences")}
    address = text(vm, "status", "extraNetIP")
    claim = objects.claims.get(ObjectName("", address), {})
    # The claim decides between two VMs whose status names the same address.
    has_claim = is_v4(address) and owner_of(claim) == (name, uid_of(vm))
    return address if has_claim and owners & rightful_owners else ""


def part_of(found: JsonObject) -> Json:
    """The part of an object that is kept: a node program holds those of the whole cluster."""
    # Informers need metadata and labels; nothing else of an object is looked at here.
    labels = {key: value for key, value in labels_of(found).items() if key in {LABEL_CLAIM, LABEL_CLIENT}}
    parts = {part: {key: child(found, part).get(key) for key in keys} for part, keys in _KEPT.items()}
    return {**parts, "metadata": {**parts["metadata"], "labels": labels}}


_KEPT: Final = {
    "metadata": ("namespace", "name", "uid"),
    "spec": ("vmName", "parentRef"),
    "status": (
        *("addresses", "extraNetIP", "node", "phase", "podName"),
        *("sourceNode", "targetNode", "targetPodName"),
    ),
}
