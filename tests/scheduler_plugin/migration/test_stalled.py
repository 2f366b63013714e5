"""A user's migration that never begins: after a minute it no longer counts, and users can see that (S4.9)."""

from __future__ import annotations

import pytest

from scheduler_plugin.web import views
from tests.scheduler_plugin.fake_cluster import MIGRATIONS, PODS, VMS
from tests.scheduler_plugin.migration.moving_cluster import full_cluster, moving_cluster
from tests.scheduler_plugin.objects import plain_pod, vm, vm_pod

WHY = "its target pod has had no node for 60 s, so it is ignored until it has one"


async def test_stalled_migration_is_named_everywhere() -> None:
    cluster = full_cluster()
    cluster.remove(PODS, "default", "foreign")
    async with moving_cluster(cluster) as s:
        s.order_by_hand()
        await s.passes(50)
        assert "autoscale_scheduler_migrations_stalled 0.0" in await s.metrics()
        await s.passes(20)
        assert "autoscale_scheduler_migrations_stalled 1.0" in await s.metrics()
        (shown,) = (await s.view("explain/default/db"))["migrations"]
        assert (shown["name"], shown["problem"]) == ("default/by-hand", WHY)
        assert s.events[-1] == ("db", "MigrationStalled", f"by-hand: {WHY}")
        s.let_go()
        await s.passes(10)
        assert "autoscale_scheduler_migrations_stalled 0.0" in await s.metrics()


async def test_few_of_many_migrations_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tenant may create thousands. The one that runs, or may begin next, is among the ones shown."""
    monkeypatch.setattr(views, "MAX_MIGRATIONS", 3)
    async with moving_cluster(full_cluster()) as s:
        for number in range(6):
            metadata = {"namespace": "default", "name": f"many-{number}", "uid": f"uid-{number}"}
            s.cluster.put(MIGRATIONS, {"metadata": metadata, "spec": {"vmName": "db"}})
            await s.passes(1)
        shown = [(await s.view(path))["migrations"] for path in ("explain/default/db", "nodes")]
    names = [[migration["name"].removeprefix("default/many-") for migration in migrations] for migrations in shown]
    assert names == [["0", "4", "5"], ["0", "1", "2"]]


async def test_refusal_of_its_target_pod_is_told() -> None:
    cluster = full_cluster()
    cluster.remove(PODS, "default", "foreign")
    async with moving_cluster(cluster) as s:
        s.order_by_hand()
        s.controller.accept()
        pod = s.controller.make_target()
        why = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no node matches"}
        cluster.put(PODS, {**pod, "status": {"phase": "Pending", "conditions": [why]}})
        await s.passes(70)
        assert s.events[-1] == (
            "db",
            "MigrationStalled",
            f"by-hand: {WHY} (kube-scheduler says: no node matches)",
        )
        await s.passes(600)
        assert [turn for _, turn, _ in s.events].count("MigrationStalled") == 1


@pytest.mark.parametrize("is_accepted", [False, True])
async def test_waiting_neighbour_is_helped_otherwise(is_accepted: bool) -> None:
    """The VM that a user wants to migrate stays, and another one moves for the neighbour."""
    cluster = full_cluster()
    cluster.put(PODS, plain_pod("foreign", "4", "1Gi", "n1"))
    cluster.put(VMS, vm("other", 2, 8))
    cluster.put(PODS, vm_pod("other", "n1"))
    async with moving_cluster(cluster) as s:
        s.order_by_hand()
        if is_accepted:
            s.controller.accept()
        for _ in range(20):
            await s.told(vm_pod("other", "n1"), cpu=5)
            await s.passes(10)
        assert ("other", "n2", "") in s.migrations
