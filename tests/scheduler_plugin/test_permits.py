"""Agents' requests: a permit is stored before it is granted, even if the API server fails (S4.5)."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from scheduler_plugin.settings.document import parse_settings
from tests.fake_clock import FakeClock, settle
from tests.scheduler_plugin.fake_cluster import NODES, PODS, VMS, FakeCluster, Fault, to
from tests.scheduler_plugin.granted import POD, said, settled, with_permit
from tests.scheduler_plugin.objects import node, plain_pod, vm, vm_pod
from tests.scheduler_plugin.running import SETTINGS, running

UNIT = {"vCPUs": "250m", "mem": 1}


def persisted(cluster: FakeCluster) -> Any:
    return json.loads(cluster.get(VMS, "default", "db")["metadata"]["annotations"]["autoscaling.neon.tech/permit"])


async def test_an_increase_is_persisted_before_it_is_answered(cluster: FakeCluster, clock: FakeClock) -> None:
    async with settled(cluster, clock) as scheduler:
        held = asyncio.Event()
        cluster.faults.append(Fault(to("PATCH", "/virtualmachines/db"), hold=held))
        asking = asyncio.create_task(scheduler.ask(POD, 2, 8))
        await settle()
        assert not asking.done()
        assert scheduler.reserved("n1") == "2 cpu, 8Gi"
        held.set()
        answer = await asking
        units = {"computeUnit": UNIT, "resourceUnit": UNIT}
        assert said(answer) == (200, {"permit": {"vCPUs": 2, "mem": 8}, "migrate": None, **units})
        assert persisted(cluster) == {"vCPUs": 2, "mem": "8Gi"}


async def test_increases_of_one_vm_are_paced(cluster: FakeCluster, clock: FakeClock) -> None:
    """Whoever has the token of one agent could ask for one milli-vCPU more each time, and load the API server without
    limit.
    """
    async with settled(cluster, clock) as scheduler:
        asked = 0

        async def ask() -> int:
            nonlocal asked
            asked += 1
            return (await scheduler.ask(POD, f"{1000 + asked}m", 5, sequence=asked)).status_code

        async def ask_forever() -> None:
            while True:
                await ask()

        def writes() -> int:
            return len(cluster.made("PATCH", "/virtualmachines/db"))

        many = [asyncio.create_task(ask()) for _ in range(40)]
        await settle()
        assert writes() == 10
        await clock.advance(5)
        assert [await task for task in many] == [200] * 10 + [503] * 29 + [200], "the newest of those that waited"
        assert (writes(), persisted(cluster)["vCPUs"]) == (11, "1040m")
        flood = asyncio.create_task(ask_forever())
        await clock.advance(20)
        assert 40 <= writes() - 11 <= 44
        flood.cancel()
        await settle()
        await clock.advance(20)
        assert (await ask(), persisted(cluster)["vCPUs"]) == (200, f"{1000 + asked}m")


async def test_paced_increase_never_follows_later_decrease(cluster: FakeCluster, clock: FakeClock) -> None:
    """Once the decrease is stored, nothing is reserved for the increase that still waits for its turn."""
    async with settled(cluster, clock) as scheduler:
        for sequence in range(10):
            await scheduler.ask(POD, f"{1001 + sequence}m", 5, sequence=sequence)
        large = asyncio.create_task(scheduler.ask(POD, 8, 5, sequence=10))
        await settle()
        assert (await scheduler.ask(POD, 1, 5, sequence=11)).status_code == 200
        await clock.advance(0.2)
        assert (scheduler.reserved("n1"), persisted(cluster)["vCPUs"], large.done()) == ("1 cpu, 5Gi", 1, False)
        await clock.advance(5)
        assert ((await large).status_code, persisted(cluster)["vCPUs"]) == (503, 1)


async def test_resources_are_judged_separately(cluster: FakeCluster, clock: FakeClock) -> None:
    cluster.put(PODS, plain_pod("neighbour", "8500m", "1Gi", "n1"))
    async with settled(cluster, clock) as scheduler:
        answer = await scheduler.ask(POD, 4, 8)
        assert answer.json()["permit"] == {"vCPUs": "1500m", "mem": 8}
        why = (await scheduler.probe("explain/default/db")).json()["pods"][0]
        assert why["denied"] == {"cpu": "2500m", "mem": "0"}
        assert why["deniedBy"] == "node n1 has 0 cpu, 31Gi free of 10 cpu, 40Gi; 2500m cpu, 0 more needed"


async def test_no_grant_on_newer_ledger(cluster: FakeCluster, clock: FakeClock) -> None:
    async with settled(cluster, clock) as scheduler:
        kept = cluster.backup()
        for version in range(3):
            cluster.put(NODES, node("n1", f"{11 + version}"))
        await settle()
        cluster.put(VMS, with_permit(cluster.get(VMS, "default", "db"), "1", "5Gi"))
        await settle()
        cluster.restore(kept, ends=lambda _: None)
        assert said(await scheduler.ask(POD, 2, 8))[0] == 503
        cluster.cut_watches()
        await clock.advance(0.5)
        assert said(await scheduler.ask(POD, 2, 8))[0] == 200
        assert persisted(cluster) == {"vCPUs": 2, "mem": "8Gi"}


async def test_an_equal_request_writes_nothing(cluster: FakeCluster, clock: FakeClock) -> None:
    async with settled(cluster, clock) as scheduler:
        assert (await scheduler.ask(POD, 1, 4)).json()["permit"] == {"vCPUs": 1, "mem": 4}
        await clock.advance(1)
        assert cluster.made("PATCH", "/virtualmachines/") == []


async def test_decrease_answers_then_persists(cluster: FakeCluster, clock: FakeClock) -> None:
    async with settled(cluster, clock) as scheduler:
        held = asyncio.Event()
        cluster.faults.append(Fault(to("PATCH", "/virtualmachines/db"), hold=held))
        cluster.put(VMS, with_permit(vm("db", "500m", 2), "1", "4Gi"))
        await settle()
        assert (await scheduler.ask(POD, "500m", 2)).json()["permit"] == {"vCPUs": "500m", "mem": 2}
        assert persisted(cluster) == {"vCPUs": "1", "mem": "4Gi"}
        held.set()
        await settle()
        assert persisted(cluster) == {"vCPUs": "500m", "mem": "2Gi"}
        assert scheduler.reserved("n1") == "500m cpu, 2Gi"


async def test_decreases_are_written_at_a_bounded_rate(cluster: FakeCluster, clock: FakeClock) -> None:
    for i in range(4):
        cluster.put(VMS, with_permit(vm(f"v{i}", "500m", 2), "1", "4Gi"))
        cluster.put(PODS, vm_pod(f"v{i}", "n1"))
    async with settled(cluster, clock) as scheduler:
        for i in range(4):
            await scheduler.ask(vm_pod(f"v{i}", "n1"), "500m", 2)
        await settle()
        assert len(cluster.made("PATCH", "/virtualmachines/")) == 1
        await clock.advance(0.04)
        assert len(cluster.made("PATCH", "/virtualmachines/")) == 3


@pytest.mark.parametrize("landed", [True, False])
async def test_unknown_increase_is_503_with_room(cluster: FakeCluster, clock: FakeClock, landed: bool) -> None:
    async with settled(cluster, clock) as scheduler:
        cluster.faults.append(Fault(to("PATCH", "/virtualmachines/db"), is_applied=landed))
        answer = await scheduler.ask(POD, 2, 8)
        assert said(answer) == (
            503,
            {"error": "the permit of default/db could not be stored; retry: lost by a fault"},
        )
        assert answer.headers["Retry-After"] == "1"
        assert scheduler.reserved("n1") == "2 cpu, 8Gi"
        assert (await scheduler.ask(POD, 2, 8)).json()["permit"] == {"vCPUs": 2, "mem": 8}
        assert persisted(cluster) == {"vCPUs": 2, "mem": "8Gi"}


async def test_conflicting_vm_is_reread_and_rewritten(cluster: FakeCluster, clock: FakeClock) -> None:
    async with settled(cluster, clock) as scheduler:
        held = asyncio.Event()
        cluster.faults.append(Fault(to("PATCH", "/virtualmachines/db"), hold=held))
        asking = asyncio.create_task(scheduler.ask(POD, 2, 8))
        await settle()
        changed = cluster.get(VMS, "default", "db") | {"status": {"podName": "db-pod", "phase": "Scaling"}}
        cluster.put(VMS, changed)
        held.set()
        assert (await asking).status_code == 200
        assert persisted(cluster) == {"vCPUs": 2, "mem": "8Gi"}


async def test_permit_is_bound_to_vm_uid(cluster: FakeCluster, clock: FakeClock) -> None:
    async with settled(cluster, clock) as scheduler:
        held = asyncio.Event()
        cluster.faults.append(Fault(to("PATCH", "/virtualmachines/db"), hold=held))
        asking = asyncio.create_task(scheduler.ask(POD, 2, 8))
        await settle()
        cluster.remove(VMS, "default", "db")
        cluster.put(VMS, vm("db", uid="another"))
        held.set()
        assert (await asking).status_code == 503
        assert "annotations" not in cluster.get(VMS, "default", "db")["metadata"]


async def test_api_outage_only_delays(cluster: FakeCluster, clock: FakeClock) -> None:
    async with settled(cluster, clock) as scheduler:
        assert (await scheduler.ask(POD, 1, 4)).status_code == 200
        cluster.go_away()
        await clock.advance(20)
        assert (await scheduler.ask(POD, 2, 8)).status_code == 503
        await clock.advance(10)
        assert (await scheduler.probe("readyz")).status_code == 200
        cluster.come_back()
        cluster.put(PODS, plain_pod("neighbour", "8", "1Gi", "n1"))
        await clock.advance(10)
        assert (await scheduler.ask(POD, 4, 8)).json()["permit"] == {"vCPUs": 2, "mem": 8}


async def test_a_restarted_scheduler_reserves_what_its_predecessor_granted(
    cluster: FakeCluster, clock: FakeClock
) -> None:
    async with settled(cluster, clock) as scheduler:
        assert (await scheduler.ask(POD, 4, 8)).status_code == 200
    async with running(cluster, clock, identity="successor") as successor:
        assert successor.reserved("n1") == "4 cpu, 8Gi"
        pod = cluster.put(PODS, plain_pod("p", "7", "1Gi"))
        assert await successor.filter(pod, "n1") == []
        assert (await successor.ask(POD, 4, 8)).json()["permit"] == {"vCPUs": 4, "mem": 8}


async def test_no_decision_before_initial_list(cluster: FakeCluster, clock: FakeClock) -> None:
    cluster.go_away()
    async with running(cluster, clock) as scheduler:
        assert (await scheduler.ask(POD, 2, 8)).status_code == 503
        pod = plain_pod("p")
        result = await scheduler.verb("filter", {"Pod": pod, "NodeNames": ["n1"]})
        assert (result["NodeNames"], result["Error"]) == (None, "the scheduler has not listed the cluster yet")
        assert await scheduler.bind(pod, "n1") == "the API is away"
        missing = (
            "the cluster has not been listed yet; missing: nodes, pods, virtualmachinemigrations, virtualmachines\n"
        )
        assert (await scheduler.probe("readyz")).text == missing
        cluster.come_back()
        await clock.advance(1)
        assert (await scheduler.probe("readyz")).text == "ok\n"
        assert (await scheduler.ask(POD, 2, 8)).status_code == 200


async def test_the_compute_unit_changes_at_run_time(cluster: FakeCluster, clock: FakeClock) -> None:
    async with settled(cluster, clock) as scheduler:
        assert (await scheduler.ask(POD, 1, 4)).json()["computeUnit"] == UNIT
        scheduler.parts.context.feed.apply_settings(
            parse_settings(SETTINGS.replace("250m", "500m").replace("system: 0", "system: 1"))
        )
        assert (await scheduler.ask(POD, 1, 4)).json()["computeUnit"] == {"vCPUs": "500m", "mem": 1}
        nodes = (await scheduler.probe("nodes")).json()["nodes"]
        assert nodes[0]["total"]["cpu"] == "9"


async def test_denial_events_are_rate_limited(cluster: FakeCluster, clock: FakeClock) -> None:
    cluster.put(PODS, plain_pod("neighbour", "8500m", "1Gi", "n1"))
    async with settled(cluster, clock) as scheduler:
        for _ in range(3):
            await scheduler.ask(POD, 4, 8)
            await clock.advance(15)
        (event,) = cluster.notices
        shown = {key: event[key] for key in ("reason", "message", "type")}
        assert shown == {
            "reason": "GrowthDenied",
            "message": "asked for 4 cpu, 8Gi, got 1500m cpu, 8Gi: "
            "node n1 has 0 cpu, 31Gi free of 10 cpu, 40Gi; 2500m cpu, 0 more needed",
            "type": "Warning",
        }
        assert event["involvedObject"]["uid"] == "vm-db"
        cluster.faults.append(Fault(to("POST", "/events")))
        await clock.advance(300)
        await scheduler.ask(POD, 4, 8)
        await clock.advance(300)
        await scheduler.ask(POD, 9, 17)
        await clock.advance(1)
        assert len(cluster.notices) == 2, "the lost one is dropped, the next is written"


async def test_a_second_scheduler_is_seen(cluster: FakeCluster, clock: FakeClock) -> None:
    async with settled(cluster, clock) as scheduler, running(cluster, clock, identity="rival") as rival:
        await clock.advance(60)
        assert (await scheduler.ask(POD, 2, 8)).status_code == 200
        assert (await rival.ask(POD, 3, 8)).status_code == 200
        await settle()
        seen = [
            line
            for one in (scheduler, rival)
            for line in (await one.probe("metrics")).text.splitlines()
            if line.startswith("autoscale_scheduler_rival_permit_writes_total")
        ]
        assert seen == ["autoscale_scheduler_rival_permit_writes_total 1.0"] * 2


async def test_unknown_vm_asks_to_retry(cluster: FakeCluster, clock: FakeClock) -> None:
    ghost = vm_pod("ghost", "n1")
    cluster.put(PODS, ghost)
    async with settled(cluster, clock) as scheduler:
        answer = await scheduler.ask(ghost, 1, 4)
        assert said(answer) == (
            503,
            {"error": "VirtualMachine default/ghost of pod default/ghost-pod is not known yet"},
        )


async def test_unknown_node_is_awaited(cluster: FakeCluster, clock: FakeClock) -> None:
    cluster.put(VMS, vm("far"))
    cluster.put(PODS, vm_pod("far", "n9"))
    async with settled(cluster, clock) as scheduler:
        answer = await scheduler.ask(vm_pod("far", "n9"), 1, 4)
        assert (answer.status_code, answer.headers["Retry-After"]) == (503, "1")
        cluster.put(NODES, node("n9"))
        await settle()
        assert (await scheduler.ask(vm_pod("far", "n9"), 1, 4)).status_code == 200
