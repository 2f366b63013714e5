"""The VirtualMachine objects of the demonstration and the benchmarks (pure)."""

from __future__ import annotations

from typing import Final

from protocol.kubernetes.objects import Json, annotations_of, child
from protocol.messages import ObjectName
from protocol.names import AUTO_MIGRATION, LABEL_ENABLED, VM_GROUP, VM_VERSION


def postgres_vm(name: ObjectName, cpus: int, slots: int) -> Json:
    """A VM with autoscaling that starts with 1 CPU and two slots of 128Mi; ``cpus`` and ``slots`` are its maximum."""
    return {
        "apiVersion": f"{VM_GROUP}/{VM_VERSION}",
        "kind": "VirtualMachine",
        "metadata": {"name": name.name, "namespace": name.namespace, "labels": {LABEL_ENABLED: "true"}},
        "spec": {
            "schedulerName": "autoscale-scheduler",
            "extraNetwork": {"enable": True},
            "guest": {
                "cpus": {"min": 1, "max": cpus, "use": 1},
                "memorySlotSize": "128Mi",
                "memorySlots": {"min": 2, "max": slots, "use": 2},
                "rootDisk": {"image": "localhost:5001/postgres-vm:dev"},
                "ports": [{"name": "postgres", "port": 5432}],
            },
            # A pod without requests is evicted first, and other schedulers count it as nothing.
            "podResources": {"requests": {"cpu": "1", "memory": "256Mi"}},
        },
    }


def kept_in_place(vm: Json) -> Json:
    """The VM as one that the scheduler does not move, until ``MAY_MOVE`` is patched."""
    annotations = {**annotations_of(vm), AUTO_MIGRATION: "false"}
    return {**vm, "metadata": {**child(vm, "metadata"), "annotations": annotations}}


# In a merge patch, null removes the key.
MAY_MOVE: Final[Json] = {"metadata": {"annotations": {AUTO_MIGRATION: None}}}
