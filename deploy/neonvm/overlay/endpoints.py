"""Which VM owns each IP of the flat network, and on which nodes it may be (pure).

Sources are objects that only the controller and administrators write: IPAddress claims, and the status of VMs and
migrations. Tenants' own fields are not trusted.
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
"""Label of an IPAddress whose parent is a node: an administrator attached a client with this IP there."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One IP. ``nodes`` are the names of the nodes that may send its frames, the current node first.

    ``namespace`` is the VM's; empty for a client, which all namespaces can reach.
    """

    address: str
    namespace: str
    nodes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class FlatObjects:
    """Objects of the cluster; ``vms`` and ``claims`` are keyed by name."""

    claims: Mapping[ObjectName, Json]
    vms: Mapping[ObjectName, Json]
    migrations: Iterable[Json]


def client_claim(address: str, node: str) -> Json:
    """An IPAddress that gives ``address`` to a client on the bridge of ``node``."""
    return {
        "apiVersion": IP_ADDRESSES.api_version,
        "kind": IP_ADDRESSES.kind,
        "metadata": {"name": address, "labels": {LABEL_CLIENT: "true"}},
        "spec": {"parentRef": {"resource": NODES.plural, "name": node}},
    }


def is_v4(address: str) -> bool:
    """Return True if ``address`` is an IPv4 address."""
    try:
        return ip_address(address).version == 4
    except ValueError:
        return False


def endpoints(objects: FlatObjects) -> list[Endpoint]:
    """All IPs in use. A VM that is being migrated may be on the source and the target node."""
    moving: dict[ObjectName, list[str]] = {}
    for migration in filter(is_under_way, objects.migrations):
        # Both nodes may send: the source until it stops, the target from its gratuitous ARP on.
        ends = [text(migration, "status", end) for end in ("sourceNode", "targetNode")]
        moving.setdefault(vm_of(migration), []).extend(ends)
    all_endpoints = []
    for name, claim in objects.claims.items():
        if node := _client_node(claim):
            all_endpoints.append(Endpoint(name.name, "", (node,)))
            continue
        owner, uid = owner_of(claim)
        vm = objects.vms.get(owner, {})
        # The uid, because the claim of a deleted VM of the same name may still exist.
        if uid and uid_of(vm) == uid and text(vm, "status", "extraNetIP") == name.name:
            nodes = dict.fromkeys(filter(None, (text(vm, "status", "node"), *moving.get(owner, []))))
            all_endpoints.append(Endpoint(name.name, owner.namespace, tuple(nodes)))
    return [endpoint for endpoint in all_endpoints if is_v4(endpoint.address)]


def _client_node(claim: Json) -> str:
    """The node of a client; empty if the claim is not a client's."""
    parent = child(claim, "spec", "parentRef")
    is_client = labels_of(claim).get(LABEL_CLIENT) == "true" and not text(parent, "group")
    return text(parent, "name") if is_client and text(parent, "resource") == NODES.plural else ""


def allowed_address(pod: Json, objects: FlatObjects) -> str:
    """The IP that ``pod`` may use; empty if none.

    The status of a VM, or of an active migration of it, must name the pod.
    """
    # Labels and owner references of the pod must match too, but prove nothing: its creator writes them.
    pod_name = name_of(pod)
    name = ObjectName(pod_name.namespace, labels_of(pod).get(LABEL_VM_NAME, ""))
    vm = objects.vms.get(name, {})
    migrations = [migration for migration in objects.migrations if is_under_way(migration) and vm_of(migration) == name]
    allowed_owners = {
        (MIGRATIONS.kind, uid_of(migration))
        for migration in migrations
        if text(migration, "status", "targetPodName") == pod_name.name
    }
    if text(vm, "status", "podName") == pod_name.name:
        allowed_owners.add((VIRTUAL_MACHINES.kind, uid_of(vm)))
    owners = {(text(owner, "kind"), text(owner, "uid")) for owner in items(pod, "metadata", "ownerReferences")}
    address = text(vm, "status", "extraNetIP")
    claim = objects.claims.get(ObjectName("", address), {})
    # The claim decides if the status of two VMs has the same IP.
    has_claim = is_v4(address) and owner_of(claim) == (name, uid_of(vm))
    return address if has_claim and owners & allowed_owners else ""


def trimmed(original: JsonObject) -> Json:
    """The fields of an object that this program reads; the rest is dropped to save memory."""
    labels = {key: value for key, value in labels_of(original).items() if key in {LABEL_CLAIM, LABEL_CLIENT}}
    parts = {part: {key: child(original, part).get(key) for key in keys} for part, keys in _FIELDS.items()}
    # Only a migration's phase matters. A VM's changes with each resize, and each change makes every node check its
    # network.
    if not text(original, "spec", "vmName"):
        del parts["status"]["phase"]
    return {**parts, "metadata": {**parts["metadata"], "labels": labels}}


_FIELDS: Final = {
    "metadata": ("namespace", "name", "uid"),
    "spec": ("vmName", "parentRef"),
    "status": (
        *("addresses", "extraNetIP", "node", "phase", "podName"),
        *("sourceNode", "targetNode", "targetPodName"),
    ),
}
