"""The objects of a measurement: made-up nodes, VirtualMachines, and the pods that run them (pure).

A made-up node has the status of a large empty machine and no kubelet: pods that are bound to it stay Pending.
"""

from __future__ import annotations

from typing import Final

from protocol.kubernetes.objects import Json
from protocol.names import LABEL_ENABLED, LABEL_VM_NAME, RUNNER_CONTAINER, SCHEDULER_NAME, VM_GROUP, VM_KIND, VM_VERSION

NAMESPACE: Final = "bench"
SIZES: Final = (1, 2, 3, 4)
"""Of VMs, in compute units of half a vCPU and 128 MiB, in turns."""

_SLOTS: Final = 8
_UNIT_MEM: Final = 128
_ALLOCATABLE: Final = {"cpu": "64", "memory": "64Gi", "pods": "250", "ephemeral-storage": "100Gi"}


def node_name(number: int) -> str:
    """The name of a node; numbers begin at 0."""
    return f"node-{number:05}"


def vm_name(number: int) -> str:
    """The name of a VM and of its pod; numbers begin at 0."""
    return f"vm-{number:05}"


def node(number: int) -> Json:
    """A node that is Ready and empty, one of three zones."""
    name = node_name(number)
    labels = {"kubernetes.io/hostname": name, "topology.kubernetes.io/zone": f"zone-{number % 3}"}
    ready = {"type": "Ready", "status": "True", "reason": "MadeUp", "message": "no kubelet runs here"}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": labels},
        "status": {"capacity": _ALLOCATABLE, "allocatable": _ALLOCATABLE, "conditions": [ready]},
    }


def virtual_machine(number: int) -> Json:
    """A VM that may grow to eight compute units."""
    use = SIZES[number % len(SIZES)]
    guest = {
        "cpus": {"min": "500m", "use": f"{use * 500}m", "max": f"{_SLOTS * 500}m"},
        "memorySlots": {"min": 1, "use": use, "max": _SLOTS},
        "memorySlotSize": f"{_UNIT_MEM}Mi",
        "rootDisk": {"image": "localhost/postgres-vm:made-up"},
        "ports": [{"name": "postgres", "port": 5432}],
    }
    return {
        "apiVersion": f"{VM_GROUP}/{VM_VERSION}",
        "kind": VM_KIND,
        "metadata": {"name": vm_name(number), "namespace": NAMESPACE, "labels": {LABEL_ENABLED: "true"}},
        "spec": {"schedulerName": SCHEDULER_NAME, "guest": guest},
    }


def pod(number: int, vm_uid: str, on: str = "") -> Json:
    """The pod that runs the VM with this UID: pending, or bound to the node ``on``."""
    name, use = vm_name(number), SIZES[number % len(SIZES)]
    owner = {"apiVersion": f"{VM_GROUP}/{VM_VERSION}", "kind": VM_KIND, "name": name, "uid": vm_uid, "controller": True}
    requests = {"cpu": f"{use * 500}m", "memory": f"{use * _UNIT_MEM}Mi"}
    runner = {"name": RUNNER_CONTAINER, "image": "localhost/runner:made-up", "resources": {"requests": requests}}
    # No grace period, because no kubelet would ever end it.
    spec: Json = {"schedulerName": SCHEDULER_NAME, "containers": [runner], "terminationGracePeriodSeconds": 0}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": NAMESPACE,
            "labels": {LABEL_VM_NAME: name},
            "ownerReferences": [owner],
        },
        "spec": spec | ({"nodeName": on} if on else {}),
    }
