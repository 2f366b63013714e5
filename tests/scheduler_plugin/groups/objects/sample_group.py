"""A VirtualMachineGroup as people write it."""

from __future__ import annotations

from protocol.kubernetes.objects import Json

GUEST: Json = {
    "cpus": {"min": 1, "max": 4, "use": 1},
    "memorySlotSize": "128Mi",
    "memorySlots": {"min": 2, "max": 8, "use": 2},
    "rootDisk": {"image": "localhost:5001/postgres-vm:latest"},
    "ports": [{"name": "postgres", "port": 5432}],
}


def shop(**spec: object) -> Json:
    """The group ``default/shop`` with these fields in its spec."""
    template: Json = {
        "metadata": {"labels": {"autoscaling.neon.tech/enabled": "true"}, "annotations": {"team": "shop"}},
        "spec": {"schedulerName": "autoscale-scheduler", "guest": GUEST},
    }
    return {
        "apiVersion": "autoscaling.neon.tech/v1alpha1",
        "kind": "VirtualMachineGroup",
        "metadata": {"name": "shop", "namespace": "default", "uid": "u-shop", "generation": 3},
        "spec": {"replicas": 2, "template": template, **spec},
    }
