"""The Node object of a local node (pure): ready, with what it has to give."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from protocol.kubernetes.objects import Json
from protocol.units import Resources

MOST_PODS: Final = "500"


@dataclass(frozen=True, slots=True)
class NodeSpec:
    """One node: its name and what it has; all of it is allocatable."""

    name: str
    capacity: Resources


def node_object(node: NodeSpec, now: str) -> Json:
    """The object as it is registered. It carries no not-ready taint, which nobody here would remove."""
    amounts = {"cpu": node.capacity.cpu.quantity(), "memory": node.capacity.mem.quantity(), "pods": MOST_PODS}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": node.name, "labels": {"kubernetes.io/hostname": node.name, "kubernetes.io/os": "linux"}},
        "spec": {"taints": []},
        "status": {
            "capacity": amounts,
            "allocatable": amounts,
            "conditions": [
                {
                    "type": "Ready",
                    "status": "True",
                    "reason": "KubeletReady",
                    "message": "the local runtime is up",
                    "lastHeartbeatTime": now,
                    "lastTransitionTime": now,
                }
            ],
        },
    }
