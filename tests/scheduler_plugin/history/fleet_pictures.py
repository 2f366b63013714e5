"""Samples of a small fleet, as a cluster and its scheduler would report it."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from protocol.kubernetes.objects import Json
from protocol.messages import ObjectName
from scheduler_plugin.history.core.decoding import ClusterSample
from scheduler_plugin.history.core.samples import SECOND, Millis

BEGAN: Millis = 1_767_225_600_000
DB = ObjectName("default", "db")


def vm(
    name: str = "db",
    cpu: str = "2",
    node: str = "n1",
    version: str = "1",
    labels: Mapping[str, str] = MappingProxyType({}),
) -> Json:
    """A VirtualMachine of 250m to 8 vCPUs and 1 to 16 GiB."""
    cpus = {"min": "250m", "use": cpu, "max": 8}
    guest = {"cpus": cpus, "memorySlots": {"min": 1, "use": 4, "max": 16}, "memorySlotSize": "1Gi"}
    metadata = {"namespace": "default", "name": name, "uid": name, "resourceVersion": version, "labels": dict(labels)}
    return {"metadata": metadata, "spec": {"guest": guest}, "status": {"phase": "Running", "node": node}}


def pod(
    name: str = "db", cpu: str = "2", mem: str = "4Gi", denied: str = "0", migrating: bool = False, **more: Any
) -> Json:
    """A VM's pod in the scheduler's response; its permit is its reservation."""
    amounts = {"cpu": cpu, "mem": mem}
    said = {"vm": f"default/{name}", "reserved": amounts, "permit": amounts, "use": amounts}
    return {**said, "denied": {"cpu": denied, "mem": "0"}, "migrating": migrating, **more}


def node(*pods: Json, name: str = "n1", reserved: str = "2") -> Json:
    """A node of 16 vCPUs and 64 GiB."""
    sizes = {"total": {"cpu": "16", "mem": "64Gi"}, "watermark": {"cpu": "14", "mem": "56Gi"}}
    return {"name": name, **sizes, "reserved": {"cpu": reserved, "mem": "4Gi"}, "pods": list(pods)}


def look(
    seconds: float, *vms: Json, nodes: list[Json] | None = None, migrations: tuple[Json, ...] = ()
) -> ClusterSample:
    """A sample, this many seconds after the start."""
    answer: Json | None = None if nodes is None else {"nodes": nodes}
    return ClusterSample(BEGAN + round(seconds * SECOND), vms, answer, {"n1": ("m5.large",)}, migrations)


def account(because: str = "idle", busy: float = 0.5, used: str = "1Gi", goal: str = "1", **more: Any) -> Json:
    """An agent's response."""
    return {
        "because": because,
        "goal": {"cpu": goal, "mem": "2Gi"},
        "metrics": {"cores_busy": busy, "mem_used": used},
        "permit": {"cpu": "2", "mem": "4Gi"},
        "size": {"ordered": {"cpu": "2", "mem": "4Gi"}},
        "parts": [{"name": "cpu", "need": "1", "because": "0.50 busy"}],
        **more,
    }
