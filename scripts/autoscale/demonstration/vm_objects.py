"""The VirtualMachine objects of the demonstration and the benchmarks (pure)."""

from __future__ import annotations

from protocol.kubernetes.objects import Json
from protocol.messages import ObjectName
from protocol.names import LABEL_ENABLED, VM_GROUP, VM_VERSION


def postgres_vm(name: ObjectName, cpus: int, slots: int) -> Json:
    """A VM with autoscaling that starts with 1 CPU and two memory slots of 128Mi; it may have so many of each."""
    return {
        "apiVersion": f"{VM_GROUP}/{VM_VERSION}",
        "kind": "VirtualMachine",
        "metadata": {"name": name.name, "labels": {LABEL_ENABLED: "true"}},
        "spec": {
            "schedulerName": "autoscale-scheduler",
            "extraNetwork": {"enable": True},
            "guest": {
                "cpus": {"min": 1, "max": cpus, "use": 1},
                "memorySlotSize": "128Mi",
                "memorySlots": {"min": 2, "max": slots, "use": 2},
                "rootDisk": {"image": "localhost:5001/postgres-vm:latest"},
                "ports": [{"name": "postgres", "port": 5432}],
            },
        },
    }
