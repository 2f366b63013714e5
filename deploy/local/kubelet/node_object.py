"""Node objects of local nodes: conditions, labels, and lifecycle taints (pure)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from protocol.kubernetes.conditions import condition_of
from protocol.kubernetes.objects import Json, flag, items, text
from protocol.units import Resources

# Far above Kubernetes' default of 110: hundreds of simulated VMs share a node.
MAX_PODS: Final = "500"
NOT_READY: Final = "node.kubernetes.io/not-ready"
UNREACHABLE: Final = "node.kubernetes.io/unreachable"
UNSCHEDULABLE: Final = "node.kubernetes.io/unschedulable"
EFFECTS: Final = ("NoSchedule", "PreferNoSchedule", "NoExecute")
_LIFECYCLE: Final = frozenset({NOT_READY, UNREACHABLE, UNSCHEDULABLE})
# Any other status, such as Unknown, means unreachable.
_BY_READY: Final = {"True": "", "False": NOT_READY}


@dataclass(frozen=True, slots=True)
class NodeSpec:
    """One node. All of ``capacity`` is allocatable; ``taints`` are set only when the Node is created."""

    name: str
    capacity: Resources
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[Json, ...] = ()


def node_object(node: NodeSpec, now: str) -> Json:
    """The Node as its kubelet registers it: Ready, and without the not-ready taint."""
    amounts = {"cpu": node.capacity.cpu.quantity(), "memory": node.capacity.mem.quantity(), "pods": MAX_PODS}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": node.name, "labels": node_labels(node)},
        "spec": {"taints": list(node.taints)},
        "status": {
            "capacity": amounts,
            "allocatable": amounts,
            "conditions": [ready_condition("True", "KubeletReady", "the local runtime is up", now)],
        },
    }


def node_labels(node: NodeSpec) -> Json:
    """Labels that the kubelet sets."""
    # The guests' architecture, on any machine: QEMU emulates x86 only.
    own = {"kubernetes.io/arch": "amd64", "kubernetes.io/hostname": node.name, "kubernetes.io/os": "linux"}
    return {**own, **node.labels}


def ready_condition(status: str, reason: str, message: str, now: str) -> Json:
    """A Ready condition; ``status`` is True, False or Unknown."""
    return {
        "type": "Ready",
        "status": status,
        "reason": reason,
        "message": message,
        "lastHeartbeatTime": now,
        "lastTransitionTime": now,
    }


def ready_status(node: Json) -> str:
    """Status of the Ready condition; Unknown if the node has none."""
    return text(condition_of(node, "Ready"), "status") or "Unknown"


def with_condition(node: Json, condition: Json) -> list[Json]:
    """The node's conditions, with ``condition`` replacing Ready."""
    others = [other for other in items(node, "status", "conditions") if text(other, "type") != "Ready"]
    return [*others, condition]


def lifecycle_taints(node: Json, ready: str, now: str) -> list[Json]:
    """The node's taints, with the lifecycle taints for its Ready status ``ready`` and for ``spec.unschedulable``."""
    current = {(text(taint, "key"), text(taint, "effect")): taint for taint in items(node, "spec", "taints")}
    lifecycle = []
    # NoSchedule keeps new pods away; NoExecute evicts pods without a toleration.
    if key := _BY_READY.get(ready, UNREACHABLE):
        lifecycle += [(key, "NoSchedule"), (key, "NoExecute")]
    if flag(node, "spec", "unschedulable"):
        lifecycle.append((UNSCHEDULABLE, "NoSchedule"))
    others = [taint for (key, _), taint in current.items() if key not in _LIFECYCLE]
    # Keep existing taints as they are: `tolerationSeconds` counts from their `timeAdded`.
    return [
        *others,
        *(current.get((key, effect), {"key": key, "effect": effect, "timeAdded": now}) for key, effect in lifecycle),
    ]
