"""A VM that falls asleep and wakes, seen by the whole scheduler: its object, its agent, the page of metrics (B.18)."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from protocol.guest.sleep import ASLEEP, WAKING
from tests.fake_clock import FakeClock, settle
from tests.scheduler_plugin.fake_cluster import PODS, VMS, FakeCluster, Fault, to
from tests.scheduler_plugin.followed_pod import following, made, requested, sized
from tests.scheduler_plugin.granted import POD, settled
from tests.scheduler_plugin.objects import plain_pod
from tests.scheduler_plugin.running import Running


def becomes(cluster: FakeCluster, phase: str) -> None:
    """The controller sets the phase, in which no guest runs."""
    obj: Any = json.loads(json.dumps(cluster.get(VMS, "default", "db")))
    obj["status"] |= {"phase": phase, "cpus": None, "memorySize": None}
    cluster.put(VMS, obj)


def stored(cluster: FakeCluster) -> Any:
    return json.loads(cluster.get(VMS, "default", "db")["metadata"]["annotations"]["autoscaling.neon.tech/permit"])


async def fall_asleep(cluster: FakeCluster, scheduler: Running, pod: Any = POD) -> None:
    """The VM sleeps, and its agent has given up its permit."""
    becomes(cluster, ASLEEP)
    await settle()
    assert (await scheduler.ask(pod, 0, 0, sequence=1)).json()["permit"] == {"vCPUs": 0, "mem": 0}
    await scheduler.clock.advance(1)


async def metrics(scheduler: Running) -> dict[str, float]:
    page = (await scheduler.probe("metrics")).text
    samples = [sample for family in text_string_to_metric_families(page) for sample in family.samples]
    return {
        sample.name.removeprefix("autoscale_scheduler_"): sample.value
        for sample in samples
        if sample.labels.get("resource", "cpu") == "cpu" and "le" not in sample.labels
    }


async def test_sleeper_frees_room_and_gets_it_back(cluster: FakeCluster, clock: FakeClock) -> None:
    async with settled(cluster, clock) as scheduler:
        await fall_asleep(cluster, scheduler)
        assert stored(cluster) == {"vCPUs": 0, "mem": 0}
        assert scheduler.reserved("n1") == "100m cpu, 128Mi"
        view = await metrics(scheduler)
        assert (view["sleeping_vms"], view["waking_vms"], view["node_for_waking"]) == (1, 0, 1)
        assert (await scheduler.probe("nodes")).json()["nodes"][0]["forWaking"] == {"cpu": "1", "mem": "4Gi"}
        becomes(cluster, WAKING)
        await settle()
        assert (await scheduler.ask(POD, 1, 4, sequence=2)).json()["permit"] == {"vCPUs": 1, "mem": 4}
        assert stored(cluster) == {"vCPUs": 1, "mem": "4Gi"}
        assert scheduler.reserved("n1") == "1 cpu, 4Gi"
        view = await metrics(scheduler)
        assert (view["sleeping_vms"], view["waking_vms"], view["wake_permit_seconds_count"]) == (0, 1, 1)
        why = (await scheduler.probe("explain/default/db")).json()["pods"][0]
        assert why["sleep"] == "waking: the permit for 1 cpu, 4Gi is stored, the guest is starting"


async def test_wait_of_a_waking_vm_is_explained(cluster: FakeCluster, clock: FakeClock) -> None:
    async with settled(cluster, clock) as scheduler:
        await fall_asleep(cluster, scheduler)
        cluster.put(PODS, plain_pod("big", "9500m", "1Gi", "n1"))
        becomes(cluster, WAKING)
        await settle()
        assert (await scheduler.ask(POD, 1, 4, sequence=2)).json()["permit"] == {"vCPUs": 0, "mem": 0}
        why = (await scheduler.probe("explain/default/db")).json()["pods"][0]
        assert why["sleep"] == (
            "waking: waiting for a permit for 1 cpu, 4Gi: node n1 has 400m cpu, 39808Mi free of 10 cpu, 40Gi;"
            " 1 cpu, 4Gi more needed"
        )
        await clock.advance(7)
        cluster.remove(PODS, "default", "big")
        await settle()
        assert (await scheduler.ask(POD, 1, 4, sequence=3)).json()["permit"] == {"vCPUs": 1, "mem": 4}
        assert (await metrics(scheduler))["wake_permit_seconds_sum"] == 7


async def test_lowering_meets_a_vm_that_is_waking(cluster: FakeCluster, clock: FakeClock) -> None:
    """The guest may wake by the permit on the object before the write that gives it up arrives: it must not land."""
    async with settled(cluster, clock) as scheduler:
        becomes(cluster, ASLEEP)
        await settle()
        held = asyncio.Event()
        cluster.faults.append(Fault(to("PATCH", "/virtualmachines/db"), hold=held))
        await scheduler.ask(POD, 0, 0, sequence=1)
        await clock.advance(1)
        becomes(cluster, WAKING)
        held.set()
        await clock.advance(5)
        assert stored(cluster) == {"vCPUs": "1", "mem": "4Gi"}
        assert scheduler.reserved("n1") == "1 cpu, 4Gi"


async def test_requests_follow_a_sleeper_down_and_up(clock: FakeClock) -> None:
    cluster = made()
    async with following(cluster, clock) as scheduler:
        await fall_asleep(cluster, scheduler, sized(1, 4))
        await clock.advance(10)
        assert requested(cluster) == {"cpu": "1m", "memory": "1Mi"}
        assert scheduler.reserved("n1") == "1m cpu, 1Mi"
        becomes(cluster, WAKING)
        await settle()
        answer = await scheduler.ask(sized(1, 4), 1, 4, sequence=2)
        assert answer.json()["permit"] == {"vCPUs": 1, "mem": 4}
        assert requested(cluster) == {"cpu": "1", "memory": "4Gi"}
