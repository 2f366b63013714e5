"""Several decreases are written at the same time: VMs whose writes hang do not delay the others (S4.5)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from protocol.kubernetes.api import ApiCall, ApiUnknownError
from protocol.kubernetes.objects import JsonObject
from protocol.units import Seconds
from scheduler_plugin.order_queues import for_each
from tests.fake_clock import FakeClock, settle
from tests.scheduler_plugin.fake_cluster import NODES, PODS, VMS, FakeCluster
from tests.scheduler_plugin.granted import with_permit
from tests.scheduler_plugin.objects import node, vm, vm_pod
from tests.scheduler_plugin.running import Running, running


class SlowCluster(FakeCluster):
    """Writes of permits take a tenth of a second; for VMs that ``hang``, until their timeout."""

    def __init__(self, clock: FakeClock, hang: Callable[[str], bool]) -> None:
        super().__init__()
        self.clock, self.hang = clock, hang

    async def call(self, call: ApiCall) -> JsonObject:
        if call.method == "PATCH" and "/virtualmachines/" in call.path:
            if self.hang(call.path.rpartition("/")[2]):
                await self.clock.sleep(call.timeout)
                raise ApiUnknownError("no answer")
            await self.clock.sleep(Seconds(0.1))
        return await super().call(call)


async def shrunk(scheduler: Running, pods: list[Any]) -> None:
    """All agents have given back half, and reported it."""
    for pod in pods:
        assert (await scheduler.ask(pod, 1, 1, sequence=1)).status_code == 200


def stored(cluster: FakeCluster, count: int) -> int:
    """Number of VMs with a permit of one vCPU."""
    found = [cluster.get(VMS, "default", f"v{number}")["metadata"]["annotations"] for number in range(count)]
    return sum('"vCPUs":1,' in each["autoscaling.neon.tech/permit"] for each in found)


@pytest.mark.parametrize("hanging", [0, 30])
async def test_decreases_of_many_vms_are_written_soon(hanging: int) -> None:
    clock, count = FakeClock(), 300
    cluster = SlowCluster(clock, lambda name: int(name[1:]) < hanging)
    pods = []
    for number in range(count):
        cluster.put(NODES, node(f"n{number}"))
        cluster.put(VMS, with_permit(vm(f"v{number}", 1, 1), "2", "2Gi"))
        pods.append(cluster.put(PODS, vm_pod(f"v{number}", f"n{number}")))
    async with running(cluster, clock) as scheduler:
        await clock.advance(60)
        await shrunk(scheduler, pods)
        await clock.advance(8)
        assert stored(cluster, count) == count - hanging


async def test_flood_delays_no_other_namespace() -> None:
    """A tenant's agents may grow and shrink as often as they like; each decrease takes its turn at the slow rate."""
    clock, cluster, pods = FakeClock(), SlowCluster(FakeClock(), lambda _: False), []
    cluster.clock = clock
    for number in range(301):
        namespace = "evil" if number < 300 else "default"
        cluster.put(NODES, node(f"n{number}"))
        cluster.put(VMS, with_permit(vm(f"v{number}", 1, 1, namespace=namespace), "2", "2Gi"))
        pods.append(cluster.put(PODS, vm_pod(f"v{number}", f"n{number}", namespace=namespace)))
    async with running(cluster, clock) as scheduler:
        await clock.advance(60)
        await shrunk(scheduler, pods)
        await clock.advance(0.5)
        found = cluster.get(VMS, "default", "v300")["metadata"]["annotations"]["autoscaling.neon.tech/permit"]
        assert '"vCPUs":1,' in found


async def test_some_that_hang_leave_places_for_others() -> None:
    held, done = asyncio.Event(), []

    async def call(number: int) -> int:
        if number < 2:
            await held.wait()
        done.append(number)
        return -number

    task = asyncio.create_task(for_each(range(5), call, 3))
    await settle()
    assert done == [2, 3, 4]
    held.set()
    assert await task == [0, -1, -2, -3, -4]
