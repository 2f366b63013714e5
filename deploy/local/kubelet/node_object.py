"""The Node object of a local node, and what follows from its state (pure)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from protocol.kubernetes.conditions import condition_of
from protocol.kubernetes.objects import Json, flag, items, text
from protocol.units import Resources

# Far above Kubernetes' default of 110: hundreds of simulated VMs share a node.
MOST_PODS: Final = "500"
NOT_READY: Final = "node.kubernetes.io/not-ready"
UNREACHABLE: Final = "node.kubernetes.io/unreachable"
UNSCHEDULABLE: Final = "node.kubernetes.io/unschedulable"
EFFECTS: Final = ("NoSchedule", "PreferNoSchedule", "NoExecute")
_LIFECYCLE: Final = frozenset({NOT_READY, UNREACHABLE, UNSCHEDULABLE})
# Any other status, Unknown above all, means unreachable.
_BY_READY: Final = {"True": "", "False": NOT_READY}


@dataclass(frozen=True, slots=True)
class NodeSpec:
    """One node: its name and what it has, all of it allocatable; its labels, and the taints that it is made with."""

    name: str
    capacity: Resources
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[Json, ...] = ()


def node_object(node: NodeSpec, now: str) -> Json:
    """The object as it is registered: ready, and without a not-ready taint that would have to be removed first."""
    amounts = {"cpu": node.capacity.cpu.quantity(), "memory": node.capacity.mem.quantity(), "pods": MOST_PODS}
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
    """The labels that a node has from its kubelet."""
    return {"kubernetes.io/hostname": node.name, "kubernetes.io/os": "linux", **node.labels}


def ready_condition(status: str, reason: str, message: str, now: str) -> Json:
    """The condition Ready: ``status`` is True, False or Unknown."""
    return {
        "type": "Ready",
        "status": status,
        "reason": reason,
        "message": message,
        "lastHeartbeatTime": now,
        "lastTransitionTime": now,
    }


def ready_status(node: Json) -> str:
    """True, False or Unknown; Unknown if the node says nothing."""
    return text(condition_of(node, "Ready"), "status") or "Unknown"


def with_condition(node: Json, condition: Json) -> list[Json]:
    """The node's conditions with ``condition`` in place of its condition Ready."""
    others = [other for other in items(node, "status", "conditions") if text(other, "type") != "Ready"]
    return [*others, condition]


def lifecycle_taints(node: Json, ready: str, now: str) -> list[Json]:
    """The node's taints with those that follow from its condition Ready and from being cordoned, as in Kubernetes."""
    current = {(text(taint, "key"), text(taint, "effect")): taint for taint in items(node, "spec", "taints")}
    wanted = []
    # NoSchedule keeps new pods away, NoExecute evicts those without a toleration.
    if key := _BY_READY.get(ready, UNREACHABLE):
        wanted += [(key, "NoSchedule"), (key, "NoExecute")]
    if flag(node, "spec", "unschedulable"):
        wanted.append((UNSCHEDULABLE, "NoSchedule"))
    others = [taint for (key, _), taint in current.items() if key not in _LIFECYCLE]
    # An existing taint is kept as it is: `timeAdded` is what NoExecute tolerations count from.
    return [
        *others,
        *(current.get((key, effect), {"key": key, "effect": effect, "timeAdded": now}) for key, effect in wanted),
    ]
