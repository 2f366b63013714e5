"""Decodes nodes into facts for the ledger, and defines the watched kinds.

Quantities are parsed as in Kubernetes; errors raise ``ValueError`` with the path of the field.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import msgspec

from protocol.field_errors import field_message
from protocol.kubernetes import resources
from protocol.kubernetes.objects import JsonObject, child, text, texts
from protocol.ranking.prices import is_accelerator, price_keys
from protocol.runtime.kubernetes.watches.kinds import Kind
from protocol.units import ZERO, Resources
from protocol.wire.container_amounts import amounts
from protocol.wire.wire_quantities import mem_from_wire
from scheduler_plugin.cluster.pods.reading import decode_watched_pod, pod_at_most, read_pod
from scheduler_plugin.cluster.pods.requests import other_resources
from scheduler_plugin.cluster.pods.shapes import Amounts, Metadata
from scheduler_plugin.cluster.scheduling_fields import node_traits, volume_terms
from scheduler_plugin.cluster.virtual_machines import read_vm, vm_at_most
from scheduler_plugin.constraints.model import PLAIN_NODE, Labels, NodeTerm, NodeTraits
from scheduler_plugin.ledger.facts import NodeFacts, NodePolicy


class _NodeSpec(msgspec.Struct, frozen=True):
    unschedulable: bool | None = None
    taints: object = None


class _NodeStatus(msgspec.Struct, frozen=True):
    allocatable: Amounts | None = None
    capacity: Amounts | None = None
    conditions: object = None


class _ApiNode(msgspec.Struct, frozen=True):
    metadata: Metadata
    spec: _NodeSpec | None = None
    status: _NodeStatus | None = None


@dataclass(frozen=True, slots=True)
class ClusterNode:
    """A node of the API, before the settings apply. ``price_keys`` are from its labels."""

    name: str
    allocatable: Resources
    is_open: bool = True
    price_keys: tuple[str, ...] = ()
    gpus: int = 0
    traits: NodeTraits = PLAIN_NODE
    capacity: Resources = ZERO

    def facts(self, policy: NodePolicy, price: float) -> NodeFacts:
        """The node with its policy and price per hour."""
        return NodeFacts(self.name, self.allocatable, policy, self.is_open, price, self.traits, self.capacity)


def read_node(obj: JsonObject) -> ClusterNode:
    """Decode a Node; its capacity is used if its kubelet reports no allocatable. Raises ``ValueError``."""
    try:
        return _cluster_node(msgspec.convert(obj, _ApiNode))
    except (ValueError, RecursionError) as error:
        raise ValueError(field_message(error)) from None


_NODE: Final = msgspec.json.Decoder(_ApiNode)


def decode_node(body: bytes | msgspec.Raw) -> ClusterNode:
    """Decode a Node from JSON. Raises ``ValueError``."""
    try:
        return _cluster_node(_NODE.decode(body))
    except (ValueError, RecursionError) as error:
        raise ValueError(field_message(error)) from None


def _cluster_node(node: _ApiNode) -> ClusterNode:
    status, spec = node.status or _NodeStatus(), node.spec or _NodeSpec()
    # As the API server does by default.
    total = ("status.allocatable", status.allocatable) if status.allocatable else ("status.capacity", status.capacity)
    labels = node.metadata.labels or {}
    return ClusterNode(
        name=node.metadata.name,
        allocatable=amounts(total[0], total[1] or {}),
        is_open=not spec.unschedulable,
        price_keys=price_keys(labels),
        gpus=_gpus(*total),
        traits=node_traits(labels, spec.taints, status.conditions, other_resources(total[1])),
        capacity=amounts("status.capacity", status.capacity or {}),
    )


def _gpus(path: str, quantities: Amounts | None) -> int:
    gpus = [(name, count) for name, count in (quantities or {}).items() if is_accelerator(name)]
    # Device counts are quantities too.
    return sum(mem_from_wire(f"{path}.{name}", count).value for name, count in gpus)


NODES: Final = Kind(resources.NODES, read_node)
PODS: Final = Kind(resources.PODS, read_pod, at_most=pod_at_most, read_line=decode_watched_pod)
VMS: Final = Kind(resources.VIRTUAL_MACHINES, read_vm, at_most=vm_at_most)


def read_namespace(obj: JsonObject) -> Labels:
    """A namespace's labels."""
    return texts(obj, "metadata", "labels")


def read_claim(obj: JsonObject) -> str:
    """The volume that the claim is bound to; empty if unbound."""
    # Links pods, which name claims, to volumes with a node affinity.
    return text(obj, "spec", "volumeName")


def read_volume(obj: JsonObject) -> tuple[NodeTerm, ...]:
    """Alternatives of the volume's node affinity; none if every node reaches it."""
    return volume_terms(child(obj, "spec").get("nodeAffinity"))


NAMESPACES: Final = Kind(resources.NAMESPACES, read_namespace, is_optional=True, may_be_forbidden=True)
CLAIMS: Final = Kind(resources.PERSISTENT_VOLUME_CLAIMS, read_claim, is_optional=True, may_be_forbidden=True)
VOLUMES: Final = Kind(resources.PERSISTENT_VOLUMES, read_volume, is_optional=True, may_be_forbidden=True)
