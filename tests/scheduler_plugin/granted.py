"""A VM whose first permit is kept in the API, and a scheduler that has been running for a while."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from protocol.names import ANNOTATION_PERMIT, ANNOTATION_PERMIT_WRITER
from tests.fake_clock import FakeClock
from tests.scheduler_plugin.fake_cluster import NODES, PODS, VMS, FakeCluster
from tests.scheduler_plugin.objects import Obj, node, vm, vm_pod
from tests.scheduler_plugin.running import Running, running

POD = vm_pod("db", "n1")


def granted(cluster: FakeCluster | None = None) -> FakeCluster:
    """One node of 10 vCPUs and 40Gi, with a VM of 1 vCPU and 4 slots that has been granted as much."""
    cluster = cluster or FakeCluster()
    cluster.put(NODES, node("n1"))
    cluster.put(VMS, with_permit(vm("db"), "1", "4Gi"))
    cluster.put(PODS, POD)
    return cluster


def with_permit(obj: Obj, cpu: str, mem: str, agent: str = "") -> Obj:
    """``obj`` with a permit that names the agent in the VM's own pod as its holder, or the one in pod ``agent``."""
    pod = f"pod-{obj['metadata']['name']}"
    obj["metadata"]["annotations"] = {
        ANNOTATION_PERMIT: json.dumps({"vCPUs": cpu, "mem": mem}),
        ANNOTATION_PERMIT_WRITER: f"before/1/{pod},{agent or pod}",
    }
    return obj


def said(response: Any) -> tuple[int, Any]:
    return response.status_code, response.json()


@asynccontextmanager
async def settled(cluster: FakeCluster, clock: FakeClock, identity: str = "us") -> AsyncIterator[Running]:
    """A scheduler that has been running long enough to trust decreases."""
    async with running(cluster, clock, identity=identity) as scheduler:
        await clock.advance(60)
        yield scheduler
