"""The VirtualMachineGroup of the demonstration (pure)."""

from __future__ import annotations

from typing import Final

from protocol.kubernetes.objects import Json, child
from protocol.kubernetes.resources import VM_GROUPS
from protocol.messages import ObjectName
from protocol.names import ANNOTATION_CONFIG
from scripts.autoscale.demonstration.vm_objects import postgres_vm

GROUP: Final = ObjectName("default", "shop")
PRIMARY: Final = ObjectName("default", "shop-primary")
FIRST: Final = ObjectName("default", "shop-replica-0")
"""The replica that the group begins with."""

MOST_REPLICAS: Final = 2
LEAST_CPUS: Final = 1
MOST_CPUS: Final = 2
_SLOTS: Final = 4
_UTILIZATION: Final = 40
"""Low: an emulated guest, the clients and the way between them share the CPUs of one machine. Not lower: two idle
guests that wait for these CPUs were seen to be busy with half a CPU together.
"""
_DOWN_DELAY: Final = "90s"
"""Longer than a replica takes to start: on a busy machine the load of the other one falls meanwhile."""


def demo_group(policy: str) -> Json:
    """A primary and one replica that may become two, each of 1 to 2 CPUs; ``policy`` is that of their agents."""
    vm = postgres_vm(GROUP, cpus=MOST_CPUS, slots=_SLOTS)
    metadata = {"labels": child(vm, "metadata", "labels"), "annotations": {ANNOTATION_CONFIG: policy}}
    return {
        "apiVersion": VM_GROUPS.api_version,
        "kind": VM_GROUPS.kind,
        "metadata": {"name": GROUP.name, "namespace": GROUP.namespace},
        "spec": {
            "replicas": 1,
            "template": {"metadata": metadata, "spec": child(vm, "spec")},
            "scaling": {
                "minReplicas": 1,
                "maxReplicas": MOST_REPLICAS,
                "targetCPUUtilizationPercentage": _UTILIZATION,
                "scaleUpDelay": "5s",
                "scaleDownDelay": _DOWN_DELAY,
            },
            "drain": {"gracePeriod": "20s"},
        },
    }
