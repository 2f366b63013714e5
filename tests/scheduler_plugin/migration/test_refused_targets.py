"""Reports on a target that kube-scheduler refuses, and the next target of the VM."""

from __future__ import annotations

import copy

from tests.scheduler_plugin.fake_cluster import NODES, PODS
from tests.scheduler_plugin.migration.moving_cluster import POD, SETTLED, MovingCluster, full_cluster, moving_cluster
from tests.scheduler_plugin.objects import node, plain_pod

WHY = "0/3 nodes are available: 3 Insufficient vendor.example/disk."


def refuse(s: MovingCluster) -> None:
    """kube-scheduler finds no node for the target pod."""
    pod = copy.deepcopy(s.controller.target)
    said = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": WHY}
    pod["status"] = {"phase": "Pending", "conditions": [said]}
    s.cluster.put(PODS, pod)


async def test_refused_target_is_cancelled_and_avoided() -> None:
    cluster = full_cluster()
    cluster.put(NODES, node("n3"))
    async with moving_cluster(cluster) as s:
        await s.started()
        ((_, first, _),) = s.migrations
        refuse(s)
        await s.passes(4)
        s.controller.obey_deletion()
        await s.passes(1)
        assert s.migrations == []
        why = f"cancelled: kube-scheduler does not place it on node {first}: {WHY}"
        assert s.events[-1] == ("db", "MigrationFailed", f"did not migrate from n1 to {first}: {why}")
        assert "autoscale_scheduler_migration_refused_targets 1.0" in await s.metrics()
        refused = (await s.view("explain/default/db"))["refusedTargets"]
        assert {name: each["why"] for name, each in refused.items()} == {first: WHY}
        await s.passes(13)
        assert [target for _, target, _ in s.migrations] == [({"n2", "n3"} - {first}).pop()]


async def test_vm_grows_while_target_is_refused() -> None:
    async with moving_cluster() as s:
        await s.started()
        refuse(s)
        await s.passes(1)
        s.relieve()
        assert await s.told(POD, 4) == (200, False, 4)


async def test_device_vm_goes_to_free_device() -> None:
    device, cluster = "autoscaling.neon.tech/guest-devices", full_cluster()
    asking = copy.deepcopy(POD)
    asking["spec"]["containers"][0]["resources"]["requests"][device] = "1"
    cluster.put(PODS, asking)
    taken = plain_pod("taken", "1", "1Gi", "n3")
    taken["spec"]["containers"][0]["resources"]["requests"][device] = "1"
    cluster.put(PODS, taken)
    for name, devices in (("n3", "1"), ("n4", "1")):
        having = node(name)
        having["status"]["allocatable"][device] = devices
        cluster.put(NODES, having)
    async with moving_cluster(cluster) as s:
        await s.passes(SETTLED)
        assert s.migrations == [("db", "n4", "")]
