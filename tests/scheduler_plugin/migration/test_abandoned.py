"""NeonVM's controller never releases a migration whose VM is gone; the scheduler does, if it created it."""

from __future__ import annotations

import pytest

from tests.scheduler_plugin.fake_cluster import MIGRATIONS, PODS, VMS, Fault, to
from tests.scheduler_plugin.migration.fake_controller import FINALIZER
from tests.scheduler_plugin.migration.moving_cluster import MovingCluster, moving_cluster
from tests.scheduler_plugin.objects import vm

LOOK = 60.0
OTHER = "example.com/audit"


async def abandoned(s: MovingCluster) -> str:
    """Let the VM migrate and delete it, with all that it owns. Returns the migration's name."""
    await s.moved()
    name = s.controller.name
    pods = s.controller.migration["status"]["targetPodName"]
    s.cluster.remove(VMS, "default", "db")
    s.cluster.remove(PODS, "default", pods)
    await s.cluster.call(s.deletion(name))
    await s.passes(1)
    return name


def finalizers(s: MovingCluster) -> list[list[str]]:
    return [obj["metadata"]["finalizers"] for obj in s.cluster.collections[MIGRATIONS].objects.values()]


async def test_migration_of_deleted_vm_is_released() -> None:
    async with moving_cluster() as s:
        await abandoned(s)
        await s.passes(LOOK)
        assert finalizers(s) == [[FINALIZER]], "our own controller would still have time"
        await s.passes(LOOK)
        assert finalizers(s) == []
        assert list(s.scheduler.parts.context.ledger.migrations) == []


async def test_other_finalizers_are_kept() -> None:
    async with moving_cluster() as s:
        await s.moved()
        migration = s.controller.migration
        migration["metadata"]["finalizers"].append(OTHER)
        s.cluster.put(MIGRATIONS, migration)
        await abandoned_after(s)
        assert finalizers(s) == [[OTHER]]


async def abandoned_after(s: MovingCluster) -> None:
    s.cluster.remove(VMS, "default", "db")
    await s.cluster.call(s.deletion(s.controller.name))
    await s.passes(3 * LOOK)


async def test_migration_of_recreated_vm_is_its_controllers() -> None:
    async with moving_cluster() as s:
        await abandoned(s)
        await s.passes(LOOK)
        s.cluster.put(VMS, vm("db", 2, 8, uid="another"))
        await s.passes(3 * LOOK)
        assert finalizers(s) == [[FINALIZER]]


async def test_users_migration_is_left_alone() -> None:
    async with moving_cluster() as s:
        s.order_by_hand()
        s.controller.accept()
        await s.passes(1)
        await abandoned_after(s)
        assert finalizers(s) == [[FINALIZER]]


@pytest.mark.parametrize("status", [409, 404, 503])
async def test_refused_release_is_repeated(status: int) -> None:
    async with moving_cluster() as s:
        await abandoned(s)
        s.cluster.faults.append(Fault(to("PATCH", "virtualmachinemigrations"), refuse=status))
        await s.passes(2 * LOOK)
        assert finalizers(s) == [[FINALIZER]]
        await s.passes(LOOK)
        assert finalizers(s) == []
