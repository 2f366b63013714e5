"""A VM whose pod requests what may be used, in a cluster with one node."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx2 as httpx

from tests.fake_clock import FakeClock
from tests.scheduler_plugin.fake_cluster import NODES, PODS, VMS, FakeCluster
from tests.scheduler_plugin.granted import with_permit
from tests.scheduler_plugin.objects import Obj, node, vm, vm_pod
from tests.scheduler_plugin.running import Running, following_settings, running


def made() -> FakeCluster:
    """The VM has 1 CPU and 4Gi, and so has its pod."""
    cluster = FakeCluster()
    cluster.put(NODES, node("n1"))
    cluster.put(VMS, with_permit(vm("db"), "1", "4Gi"))
    cluster.put(PODS, sized(1, 4))
    return cluster


def sized(cpu: float, slots: int, on: str | None = "n1", allocated: tuple[float, int] | None = None) -> Obj:
    """The pod of the VM with these requests; ``allocated`` is what its kubelet reports."""
    pod = vm_pod("db", on)
    pod["spec"]["containers"][0]["resources"]["requests"] = amounts(cpu, slots)
    held = [] if allocated is None else [{"name": "neonvm-runner", "allocatedResources": amounts(*allocated)}]
    pod["status"] = {"phase": "Running", "qosClass": "Burstable", "containerStatuses": held}
    return pod


def amounts(cpu: float, slots: int) -> Obj:
    return {"cpu": f"{round(cpu * 1000)}m", "memory": f"{slots}Gi"}


@asynccontextmanager
async def following(cluster: FakeCluster, clock: FakeClock) -> AsyncIterator[Running]:
    async with running(cluster, clock, following_settings()) as scheduler:
        await clock.advance(60)
        cluster.calls.clear()
        yield scheduler


def requested(cluster: FakeCluster) -> Any:
    return cluster.get(PODS, "default", "db-pod")["spec"]["containers"][0]["resources"]["requests"]


def permit(answer: httpx.Response) -> tuple[Any, Any]:
    assert answer.status_code == 200, answer.text
    return answer.json()["permit"]["vCPUs"], answer.json()["permit"]["mem"]


async def explained(scheduler: Running) -> Any:
    return (await scheduler.probe("explain/default/db")).json()["pods"][0]


def writes(cluster: FakeCluster) -> list[str]:
    return [call.path.rpartition("/")[2] for call in cluster.calls if call.method in {"PATCH", "POST"}]


def raised_by_us(cpu: float, slots: int) -> Obj:
    """The VM's pod after a scheduler of ours has raised its requests to this size."""
    raised: Obj = {"f:resources": {"f:requests": {"f:cpu": {}, "f:memory": {}}}}
    fields = {"f:spec": {"f:containers": {'k:{"name":"neonvm-runner"}': raised}}}
    pod = sized(cpu, slots)
    entry = {"manager": "autoscale-scheduler", "subresource": "resize", "fieldsV1": fields}
    pod["metadata"]["managedFields"] = [entry]
    return pod
