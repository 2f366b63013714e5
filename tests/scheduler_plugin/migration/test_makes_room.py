"""Reports for users while a neighbour makes room: a denied VM, and a pod with a pending in-place resize (B.14)."""

from __future__ import annotations

import copy

from protocol.names import AUTO_MIGRATION, LABEL_MAKE_ROOM
from tests.scheduler_plugin.fake_cluster import NODES, PODS, VMS, FakeCluster
from tests.scheduler_plugin.migration.fake_controller import FakeController
from tests.scheduler_plugin.migration.moving_cluster import POD, MovingCluster, moving_cluster
from tests.scheduler_plugin.objects import Obj, node, plain_pod, vm, vm_pod

BIG = vm_pod("big", "n1")
LACKS = (("big", 1), ("db", 5))
"""How many vCPUs the VMs of ``cluster_with_two_vms`` lack to grow to their maximums."""


def cluster_with_two_vms() -> FakeCluster:
    """n1 has 9 vCPUs: ``big`` has 6 of them, ``db`` 2; n2 is empty. Their pods request these sizes."""
    cluster = FakeCluster()
    for name in ("n1", "n2"):
        cluster.put(NODES, node(name, "9"))
    for name, cpu, slots in (("db", 2, 2), ("big", 6, 12)):
        cluster.put(VMS, vm(name, cpu, slots))
        pod = vm_pod(name, "n1")
        pod["spec"]["containers"][0]["resources"]["requests"]["cpu"] = str(cpu)
        cluster.put(PODS, pod)
    return cluster


def pod_that_waits(asks: str) -> Obj:
    """It has 100 millicores and wants 1600, and its kubelet has deferred the resize."""
    pod = plain_pod("web", "1600m", "1Gi", "n1")
    pod["metadata"]["labels"] = {LABEL_MAKE_ROOM: asks}
    pod["status"] = {
        "phase": "Running",
        "conditions": [{"type": "PodResizePending", "status": "True", "reason": "Deferred"}],
        "containerStatuses": [{"name": "main", "allocatedResources": {"cpu": "100m", "memory": "1Gi"}}],
    }
    return pod


def told(s: MovingCluster) -> list[tuple[str, str, str]]:
    events = [one for one in s.cluster.notices if one["reason"] == "RoomBeingMade"]
    return [(one["involvedObject"]["kind"], one["involvedObject"]["name"], one["message"]) for one in events]


async def test_explain_names_who_makes_room() -> None:
    cluster = cluster_with_two_vms()
    stays = copy.deepcopy(cluster.get(VMS, "default", "big"))
    stays["metadata"]["labels"][AUTO_MIGRATION] = "false"
    cluster.put(VMS, stays)
    async with moving_cluster(cluster, "migration: {settleSeconds: 600}") as s:
        await s.told(POD, 2, 2)
        assert await s.told(BIG, 8, 12) == (200, False, 7)
        await s.passes(2)
        assert s.migrations == [], "a denial of a moment moves no VM"
        assert "autoscale_scheduler_unrelieved_denial_seconds 1.0" in await s.metrics()
        await s.passes(3)
        assert s.migrations == [("db", "n2", "")]
        (room,) = (await s.view("explain/default/big"))["makingRoom"]
        why = "node n1 lacks 1 vCPU and denies VMs"
        assert room.partition(";")[0] == f"VM default/db is migrating from n1 to n2: {why}"
        assert (await s.view("explain/default/db"))["makingRoom"] == []
        page = await s.metrics()
        assert 'autoscale_scheduler_migration_causes_total{cause="denied_vm"} 1.0' in page
        assert "autoscale_scheduler_unrelieved_denial_seconds 0.0" in page
        s.controller.accept()
        s.controller.make_target()
        await s.passes(1)
        assert told(s) == [("VirtualMachine", "big", "VM default/db is migrating from n1 to n2 to make room")]
        await s.finished()
        assert await s.told(BIG, 8, 12) == (200, False, 8)


async def test_explain_says_why_none_leaves_for_growth() -> None:
    async with moving_cluster(cluster_with_two_vms(), "migration: {makeRoomToGrow: false}") as s:
        sentence = "default/{} could not grow to its maximum, for which node n1 lacks {} vCPU: {}"
        big = sentence.format("big", 1, "no planning round has run yet")
        assert (await s.view("explain/default/big"))["noRoomToGrow"] == big
        await s.passes(1)
        big, db = (sentence.format(*lacks, "migration.makeRoomToGrow is false in the settings") for lacks in LACKS)
        assert (await s.view("explain/default/big"))["noRoomToGrow"] == big
        assert [node["noRoomToGrow"] for node in (await s.view("nodes"))["nodes"]] == [db, None]


async def test_three_moves_end_denial_within_minute() -> None:
    cluster = FakeCluster()
    for name in ("n1", "n2"):
        cluster.put(NODES, node(name, "8"))
    for name in ("a", "b", "big", "c"):
        cluster.put(VMS, vm(name, 2, 2))
        cluster.put(PODS, vm_pod(name, "n1"))
    stays = copy.deepcopy(cluster.get(VMS, "default", "big"))
    stays["metadata"]["labels"][AUTO_MIGRATION] = "false"
    cluster.put(VMS, stays)
    async with moving_cluster(cluster, "migration: {settleSeconds: 600}") as s:
        began, permits = s.clock.now(), [(await s.told(BIG, 8, 2))[2]]
        while permits[-1] < 8 and s.clock.now() - began < 60:
            await s.passes(1)
            if len(s.migrations) == len(permits):
                s.controller = FakeController(cluster, s.migrations[-1][0])
                await s.carried_out()
                permits.append((await s.told(BIG, 8, 2))[2])
        assert (permits, s.clock.now() - began < 60) == ([2, 4, 6, 8], True)
        assert sorted(s.migrations) == [(each, "n2", "Succeeded") for each in ("a", "b", "c")]


async def test_agentless_vm_moves_no_neighbour() -> None:
    cluster = cluster_with_two_vms()
    async with moving_cluster(cluster, "migration: {settleSeconds: 600}") as s:
        await s.told(POD, 2, 2)
        assert await s.told(BIG, 8, 12) == (200, False, 7)
        off = copy.deepcopy(cluster.get(VMS, "default", "big"))
        off["metadata"]["labels"]["autoscaling.neon.tech/enabled"] = "false"
        cluster.put(VMS, off)
        await s.passes(60)
        assert (s.migrations, s.reserved) == ([], ("8", "0"))
        assert "autoscale_scheduler_unrelieved_denial_seconds 0.0" in await s.metrics()


async def test_dead_agents_denial_expires() -> None:
    cluster = cluster_with_two_vms()
    cluster.put(NODES, node("n2", unschedulable=True))
    async with moving_cluster(cluster, "migration: {settleSeconds: 600}") as s:
        await s.told(POD, 2, 2)
        assert await s.told(BIG, 8, 12) == (200, False, 7)
        await s.passes(30)
        assert "autoscale_scheduler_unrelieved_denial_seconds 29.0" in await s.metrics()
        await s.passes(30)
        assert "autoscale_scheduler_unrelieved_denial_seconds 0.0" in await s.metrics()
        assert (await s.view("explain/default/big"))["pods"][0]["denied"] == {"cpu": "0", "mem": "0"}


async def test_pod_reads_who_makes_room() -> None:
    cluster = cluster_with_two_vms()
    cluster.put(PODS, pod_that_waits("true"))
    async with moving_cluster(cluster, "migration: {settleSeconds: 600}") as s:
        await s.passes(5)
        assert s.migrations == [("db", "n2", "")]
        assert 'autoscale_scheduler_migration_causes_total{cause="deferred_pod"} 1.0' in await s.metrics()
        shown = next(each for each in (await s.view("nodes"))["nodes"] if each["name"] == "n1")
        assert [each["deferred"]["cpu"] for each in shown["pods"]] == ["0", "0", "1500m"]
        await s.carried_out()
        assert told(s) == [("Pod", "web", "VM default/db is migrating from n1 to n2 to make room")]
        granted = copy.deepcopy(pod_that_waits("true"))
        granted["status"] = {"phase": "Running"}
        s.cluster.put(PODS, granted)
        await s.passes(30)
        assert s.created() == 1


async def test_silent_pod_moves_no_vm() -> None:
    cluster = cluster_with_two_vms()
    cluster.put(PODS, pod_that_waits("no"))
    async with moving_cluster(cluster) as s:
        await s.passes(60)
        assert (s.created(), told(s)) == (0, [])
