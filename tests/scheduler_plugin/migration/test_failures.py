"""Nodes, VMs and pods change during a migration: the ledger is correct afterwards, and an event says what happened."""

from __future__ import annotations

import copy
from collections.abc import Awaitable, Callable

import pytest

from scheduler_plugin.planner.victims import RECENT
from tests.fake_clock import settle
from tests.scheduler_plugin.fake_cluster import MIGRATIONS, NODES, PODS, VMS, Fault, to
from tests.scheduler_plugin.migration.moving_cluster import (
    FULL,
    POD,
    SETTLED,
    STARTED,
    MovingCluster,
    full_cluster,
    moving_cluster,
    on_its_way,
)
from tests.scheduler_plugin.migration.test_restarts import PHASES, Disturbance
from tests.scheduler_plugin.objects import node, vm, vm_pod

BEFORE_PLACED = PHASES[:3]
UNTIL_HANDED_OVER = PHASES[:5]


async def reached(s: MovingCluster, *phases: Callable[[MovingCluster], Awaitable[None]]) -> None:
    for phase in phases:
        await phase(s)
        await s.passes(1)


async def deleted(s: MovingCluster) -> None:
    s.cluster.remove(NODES, "", "n2")


async def cordoned(s: MovingCluster) -> None:
    s.cluster.put(NODES, node("n2", unschedulable=True))


async def full(s: MovingCluster) -> None:
    """Another pod takes the room while no scheduler reserves it."""
    await s.stop()
    s.fill("n2", "9")
    await s.start()


CHANGES: dict[Disturbance, tuple[str, str]] = {
    deleted: ("gone", "node n2 is gone"),
    cordoned: ("0", "node n2: node(s) were unschedulable"),
    full: ("9", "node n2: Insufficient cpu"),
}


@pytest.mark.parametrize("count", [1, 2, 3], ids=[phase.__name__ for phase in BEFORE_PLACED])
@pytest.mark.parametrize("change", CHANGES, ids=[change.__name__ for change in CHANGES])
async def test_lost_unplaced_target_cancels_move(change: Disturbance, count: int) -> None:
    async with moving_cluster() as s:
        await reached(s, *BEFORE_PLACED[:count])
        await change(s)
        await s.passes(2)
        if count > 1:
            s.controller.obey_deletion()
            await s.passes(1)
        left, why = CHANGES[change]
        failed = f"did not migrate from n1 to n2: cancelled: it cannot be placed on its target: {why}"
        assert (s.migrations, s.reserved, await s.told(POD)) == ([], ("9500m", left), (200, False, 2))
        assert s.events == [STARTED, ("db", "MigrationFailed", failed)]
        assert s.created() == 1


async def test_booked_room_is_exclusive() -> None:
    async with moving_cluster() as s:
        await s.started()
        pod = s.cluster.put(PODS, copy.deepcopy(POD) | {"metadata": {"name": "p", "namespace": "default", "uid": "p"}})
        pod["spec"]["containers"][0]["resources"]["requests"]["cpu"] = "9"
        assert await s.scheduler.filter(pod, "n2") == []
        assert await s.placed() == "n2"


async def test_dead_placed_target_is_controllers() -> None:
    async with moving_cluster() as s:
        await s.started()
        await s.placed()
        s.cluster.remove(NODES, "", "n2")
        await s.passes(5)
        assert (s.migrations, s.reserved) == ([("db", "n2", "Pending")], ("9500m", "2")), "its pod is there still"
        s.controller.fail("pod db is gone")
        await s.passes(1)
        failed = ("db", "MigrationFailed", "did not migrate from n1 to n2: pod db is gone")
        assert (s.reserved, await s.told(POD), s.events) == (("9500m", "gone"), (200, False, 2), [STARTED, failed])


async def test_cancel_by_the_controller_is_no_failure() -> None:
    """A client called, so the VM woke where it was: nothing for an alert about failed migrations."""
    async with moving_cluster() as s:
        await s.started()
        await s.placed()
        s.controller.transfer()
        await s.passes(1)
        s.controller.fail("the VM was needed, and can wake on its node", "Cancelled")
        await s.passes(1)
        counts = {
            'autoscale_scheduler_migrations_total{outcome="failed"} 0.0',
            'autoscale_scheduler_migrations_total{outcome="cancelled"} 1.0',
        }
        said = ("db", "MigrationFailed", "did not migrate from n1 to n2: the VM was needed, and can wake on its node")
        assert (counts - set(await s.metrics()), s.events) == (set(), [STARTED, said])


@pytest.mark.parametrize("count", range(1, 6), ids=[phase.__name__ for phase in UNTIL_HANDED_OVER])
async def test_deleted_vm_frees_migration_and_room(count: int) -> None:
    async with moving_cluster() as s:
        await reached(s, *UNTIL_HANDED_OVER[:count])
        pods = [POD["metadata"]["name"]] + ([s.controller.target["metadata"]["name"]] if count > 2 else [])
        s.cluster.remove(VMS, "default", "db")
        for name in pods:
            s.cluster.remove(PODS, "default", name)
        await s.passes(2)
        if count > 1:
            s.let_go()
            await s.passes(1)
        assert (s.migrations, s.reserved, s.events) == ([], ("7500m", "0"), [STARTED])
        assert list(s.scheduler.parts.context.ledger.migrations) == []


async def test_dead_source_restarts_in_new_pod() -> None:
    async with on_its_way() as s:
        await s.passes(1)
        s.cluster.remove(PODS, "default", "db-pod")
        s.controller.fail("the source's guest died")
        fresh = vm_pod("db", uid="fresh")
        fresh["metadata"]["name"] = "db-fresh"
        s.point_vm_to("db-fresh")
        pod = s.cluster.put(PODS, fresh)
        await s.passes(1)
        assert s.reserved == ("7500m", "0")
        assert await s.scheduler.bind(pod, "n2") == ""
        await s.passes(1)
        assert (s.reserved, s.migrations) == (("7500m", "2"), [("db", "n2", "Failed")])
        assert await s.told(s.cluster.get(PODS, "default", "db-fresh"), 4) == (200, False, 4)


async def test_endless_migration_is_cancelled() -> None:
    async with on_its_way() as s:
        await s.passes(340)
        s.controller.obey_deletion()
        await s.passes(1)
        why = "did not migrate from n1 to n2: cancelled: it did not finish within 300 s"
        assert (s.migrations, s.reserved, s.events) == ([], FULL, [STARTED, ("db", "MigrationFailed", why)])


async def test_event_is_written_after_outage() -> None:
    async with on_its_way() as s:
        await s.passes(1)
        s.cluster.faults.append(Fault(to("POST", "/events"), times=100))
        s.controller.fail("its target died")
        await s.passes(10)
        assert s.events == [STARTED]
        s.cluster.faults.clear()
        await s.passes(2)
        assert s.events == [STARTED, ("db", "MigrationFailed", "did not migrate from n1 to n2: its target died")]


async def test_an_event_that_is_refused_is_dropped() -> None:
    async with moving_cluster() as s:
        s.cluster.faults.append(Fault(to("POST", "/events"), refuse=403, times=100))
        await s.started()
        s.cluster.faults.clear()
        await s.passes(10)
        assert s.events == []


async def test_a_deletion_that_fails_is_tried_again() -> None:
    async with moving_cluster() as s:
        await s.moved()
        s.cluster.faults.append(Fault(to("DELETE", "/virtualmachinemigrations/"), times=2))
        s.clock.jump(RECENT)
        await s.passes(1)
        assert len(s.cluster.made("DELETE", "/virtualmachinemigrations/")) == 1
        await s.passes(12)
        assert len(s.cluster.made("DELETE", "/virtualmachinemigrations/")) == 3
        s.controller.obey_deletion()
        await s.passes(1)
        assert s.migrations == []


async def test_deletion_is_not_repeated_once_wanted_again() -> None:
    cluster = full_cluster()
    cluster.put(NODES, node("n3"))
    cluster.put(VMS, vm("other", 2, 8))
    cluster.put(PODS, vm_pod("other", "n3"))
    async with moving_cluster(cluster, "migration: {maxPerCluster: 2}") as s:
        s.fill("n3", "7500m")
        await s.passes(SETTLED)
        both = [("db", "n2", ""), ("other", "n2", "")]
        assert s.migrations == both
        s.cluster.faults.append(Fault(to("DELETE", "/virtualmachinemigrations/"), times=2))
        await cordoned(s)
        await s.passes(1)
        s.cluster.put(NODES, node("n2"))
        await s.passes(10)
        assert (s.migrations, len(s.cluster.made("DELETE", "/virtualmachinemigrations/"))) == (both, 2)


async def test_gone_migration_succeeded_if_vm_moved() -> None:
    async with on_its_way() as s:
        await s.passes(1)
        s.controller.hand_over()
        s.cluster.remove(PODS, "default", "db-pod")
        s.let_go()
        await s.passes(1)
        moved = (
            "db",
            "MigrationSucceeded",
            "migrated from n1 to n2 in an unknown time with a downtime of an unknown time",
        )
        assert (s.reserved, s.events) == (("7500m", "2"), [STARTED, moved])


async def test_recreated_object_is_distinct() -> None:
    async with moving_cluster() as s:
        s.order_by_hand("m-1")
        await s.passes(1)
        s.cluster.cut_watches()
        await settle()
        s.let_go()
        s.order_by_hand("m-2")
        await s.passes(5)
        anywhere = ("db", "MigrationStarted", "migrating from n1 to a node not chosen yet")
        why = "did not migrate from n1 to a node not chosen yet: cancelled: its object was deleted"
        assert s.events == [anywhere, ("db", "MigrationFailed", why), anywhere]


async def test_foreign_finalizer_blocks_no_later_move() -> None:
    """A person deletes an order before its controller takes it up, and a backup program keeps the object."""
    async with moving_cluster(more="\nmigration: {cooldownSeconds: 60}\n") as s:
        s.order_by_hand()
        kept = s.controller.migration
        kept["metadata"] |= {"finalizers": ["other"], "deletionTimestamp": kept["metadata"]["creationTimestamp"]}
        s.cluster.put(MIGRATIONS, kept)
        await s.passes(100)
        assert s.migrations == [("db", "", ""), ("db", "n2", "")]
