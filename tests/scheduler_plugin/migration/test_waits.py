"""Reports on a migration created by a user for which no node has room."""

from __future__ import annotations

import copy

from tests.scheduler_plugin.fake_cluster import NODES, PODS
from tests.scheduler_plugin.migration.moving_cluster import MovingCluster, full_cluster, moving_cluster
from tests.scheduler_plugin.objects import node, plain_pod

WHY = "0/3 nodes are available: 3 Insufficient cpu."


def order_and_refuse(s: MovingCluster) -> None:
    """The controller has accepted a user's migration, and kube-scheduler has found no node for its target pod."""
    s.order_by_hand()
    s.controller.accept()
    pod = copy.deepcopy(s.controller.make_target())
    said = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": WHY}
    pod["status"] = {"phase": "Pending", "conditions": [said]}
    s.cluster.put(PODS, pod)


def waits(s: MovingCluster) -> list[tuple[str, str, str]]:
    """Kind, name and reason of each object reported as waiting."""
    told = [one for one in s.cluster.notices if one["reason"] == "MigrationWaits"]
    return [(one["involvedObject"]["kind"], one["involvedObject"]["name"], one["message"]) for one in told]


async def test_nearest_node_is_named_once() -> None:
    cluster = full_cluster()
    cluster.put(NODES, node("n3"))
    cluster.put(PODS, plain_pod("large", "9", "1Gi", "n2"))
    cluster.put(PODS, plain_pod("larger", "9500m", "1Gi", "n3"))
    async with moving_cluster(cluster, "migration: {enabled: false}") as s:
        order_and_refuse(s)
        await s.passes(3)
        why = "by-hand is waiting: no node has room for 2 vCPU and 8 GiB; closest is n2, which lacks 1 vCPU"
        assert waits(s) == [("VirtualMachineMigration", "by-hand", why), ("VirtualMachine", "db", why)]
        await s.passes(5)
        assert len(waits(s)) == 2


async def test_refusal_for_other_reasons_is_repeated() -> None:
    """There is room, so the reported reason is kube-scheduler's."""
    async with moving_cluster(full_cluster(), "migration: {enabled: false}") as s:
        order_and_refuse(s)
        await s.passes(3)
        assert [why for _, _, why in waits(s)] == [f"by-hand is waiting: kube-scheduler says: {WHY}"] * 2


async def test_our_own_migration_is_called_off_instead() -> None:
    async with moving_cluster() as s:
        await s.started()
        pod = copy.deepcopy(s.controller.target)
        said = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": WHY}
        pod["status"] = {"phase": "Pending", "conditions": [said]}
        s.cluster.put(PODS, pod)
        await s.passes(4)
        assert waits(s) == []
