"""A permit's write that was believed lost lands late, or its outcome stays unknown: nothing is lost or granted twice
(S4.5).

An API server that is told what an object says already leaves its version as it is.
"""

from __future__ import annotations

import copy
import json
from typing import Any

from msgspec.structs import replace

from protocol.kubernetes.api import ApiCall
from protocol.kubernetes.objects import JsonObject
from protocol.names import ANNOTATION_PERMIT, ANNOTATION_PERMIT_WRITER
from tests.fake_clock import FakeClock, settle
from tests.scheduler_plugin.fake_cluster import PODS, VMS, FakeCluster, Fault, to
from tests.scheduler_plugin.granted import POD, granted, settled, with_permit
from tests.scheduler_plugin.objects import Obj, plain_pod, vm, vm_pod
from tests.scheduler_plugin.running import Running, running

WRITES = to("PATCH", "/virtualmachines/db")


class Dropping(FakeCluster):
    """A webhook drops the value that distinguishes writes of permits."""

    async def call(self, call: ApiCall) -> JsonObject:
        if WRITES(call):
            body: Any = copy.deepcopy(call.body)
            del body["metadata"]["annotations"][ANNOTATION_PERMIT_WRITER]
            call = replace(call, body=body)
        return await super().call(call)


def persisted(cluster: FakeCluster) -> Any:
    return json.loads(cluster.get(VMS, "default", "db")["metadata"]["annotations"][ANNOTATION_PERMIT])


async def permitted(scheduler: Running, pod: Obj, cpu: int, sequence: int) -> Any:
    """The CPUs that the pod's agent is permitted; None if it is told to retry."""
    answer = await scheduler.ask(pod, cpu, 4, sequence=sequence)
    await settle()
    return answer.json()["permit"]["vCPUs"] if answer.status_code == 200 else None


async def test_late_write_cannot_follow_newer(cluster: FakeCluster, clock: FakeClock) -> None:
    async with settled(cluster, clock) as scheduler:
        cluster.faults.append(Fault(WRITES))
        assert await permitted(scheduler, POD, 2, sequence=1) is None
        (lost,) = cluster.lost
        assert await permitted(scheduler, POD, 3, sequence=2) == 3
        assert not cluster.arrive(lost)
        assert persisted(cluster) == {"vCPUs": 3, "mem": "4Gi"}


async def test_lost_increase_holds_room_until_settled(cluster: FakeCluster, clock: FakeClock) -> None:
    neighbour = vm_pod("neighbour", "n1")
    cluster.put(VMS, with_permit(vm("neighbour"), "1", "4Gi"))
    cluster.put(PODS, neighbour)
    cluster.put(PODS, plain_pod("rest", "2", "1Gi", "n1"))
    async with settled(cluster, clock) as scheduler:
        first = [await permitted(scheduler, POD, cpu, sequence) for sequence, cpu in enumerate((1, 2, 1))]
        assert (first, await permitted(scheduler, neighbour, 1, sequence=1)) == ([1, 2, 1], 1)
        await clock.advance(1)
        cluster.faults.append(Fault(WRITES))
        assert await permitted(scheduler, POD, 5, sequence=4) is None
        assert scheduler.reserved("n1") == "8 cpu, 9Gi"
        (lost,) = cluster.lost
        assert await permitted(scheduler, POD, 1, sequence=5) == 1, "what is stored already"
        await clock.advance(1)
        assert await permitted(scheduler, neighbour, 7, sequence=2) == 7
        assert not cluster.arrive(lost)
        await settle()
        assert scheduler.reserved("n1") == "10 cpu, 9Gi"
    async with running(cluster, clock, identity="successor") as successor:
        assert successor.reserved("n1") == "10 cpu, 9Gi"


async def test_lost_decrease_keeps_later_grants(cluster: FakeCluster, clock: FakeClock) -> None:
    async with settled(cluster, clock) as scheduler:
        assert await permitted(scheduler, POD, 4, sequence=1) == 4
        await clock.advance(60)
        cluster.faults.append(Fault(WRITES))
        assert await permitted(scheduler, POD, 1, sequence=2) == 1
        (lost,) = cluster.lost
        assert await permitted(scheduler, POD, 4, sequence=3) == 4, "what is stored already"
        assert not cluster.arrive(lost)
    async with running(cluster, clock, identity="successor") as successor:
        assert successor.reserved("n1") == "4 cpu, 4Gi"
        assert await successor.bind(cluster.put(PODS, plain_pod("p", "9", "1Gi")), "n1") != ""


async def test_no_op_write_frees_nothing(clock: FakeClock) -> None:
    cluster = granted(Dropping())
    async with settled(cluster, clock) as scheduler:
        assert await permitted(scheduler, POD, 2, sequence=1) == 2
        cluster.faults.append(Fault(WRITES))
        assert await permitted(scheduler, POD, 5, sequence=2) is None
        for sequence in (3, 4):
            assert await permitted(scheduler, POD, 2, sequence) == 2, "what is stored already"
            assert scheduler.reserved("n1") == "5 cpu, 4Gi"
        assert cluster.arrive(*cluster.lost)
        await clock.advance(1)
        assert await permitted(scheduler, POD, 2, sequence=5) == 2
        assert scheduler.reserved("n1") == "2 cpu, 4Gi"


async def test_kinds_have_separate_versions(cluster: FakeCluster, clock: FakeClock) -> None:
    async with settled(cluster, clock) as scheduler:
        scheduler.parts.context.feed.pods.newest = 10**6
        assert await permitted(scheduler, POD, 2, sequence=1) == 2
