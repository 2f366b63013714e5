"""Creating a migration may be refused, lost, or executed without a response: never twice, and no room stays
reserved.
"""

from __future__ import annotations

import asyncio

import pytest

from tests.fake_clock import settle
from tests.scheduler_plugin.fake_cluster import MIGRATIONS, NODES, PODS, VMS, FakeCluster, Fault, to
from tests.scheduler_plugin.migration.moving_cluster import FULL, POD, SETTLED, STARTED, full_cluster, moving_cluster
from tests.scheduler_plugin.objects import Obj, node, plain_pod, vm, vm_pod

CREATION = to("POST", "/virtualmachinemigrations")
ORDERED = ([("db", "n2", "")], ("9500m", "2"))


def with_another(namespace: str) -> FakeCluster:
    """The full cluster, with a small VM in another namespace on n1 that would move first."""
    cluster = full_cluster()
    cluster.put(VMS, vm("a", 1, 1, namespace=namespace))
    cluster.put(PODS, vm_pod("a", "n1", namespace=namespace))
    cluster.put(PODS, plain_pod("foreign", "6500m", "1Gi", "n1"))
    return cluster


async def test_refused_order_backs_off() -> None:
    async with moving_cluster(more="migration: {settleSeconds: 0}") as s:
        s.cluster.faults.append(Fault(CREATION, refuse=403, times=2))
        await s.passes(2)
        assert (s.created(), s.migrations, s.reserved, await s.told(POD)) == (1, [], FULL, (200, False, 2))
        assert (await s.view("nodes"))["nodes"][0]["stuck"] == "no VM may move: 1 refused by the API server"
        await s.passes(60)
        assert (s.created(), s.migrations) == (2, [])
        await s.passes(118)
        assert (s.created(), s.migrations) == (2, [])
        await s.passes(3)
        assert (s.created(), (s.migrations, s.reserved), s.events) == (3, ORDERED, [STARTED])
        assert 'autoscale_scheduler_migration_orders_total{outcome="refused"} 2.0' in await s.metrics()


async def test_refused_vm_yields_to_another() -> None:
    async with moving_cluster(with_another("tenant"), "migration: {settleSeconds: 0}") as s:
        s.cluster.faults.append(Fault(to("POST", "/tenant/virtualmachinemigrations"), refuse=403, times=99))
        await s.passes(4)
        assert (s.created(), s.migrations, s.reserved) == (2, [("db", "n2", "")], ("9500m", "2"))


@pytest.mark.parametrize("status", [401, 429])
async def test_general_refusal_delays_all(status: int) -> None:
    async with moving_cluster(more="migration: {settleSeconds: 0}") as s:
        s.cluster.faults.append(Fault(CREATION, refuse=status, times=3))
        await s.passes(2)
        assert (s.created(), s.migrations, s.reserved) == (1, [], FULL)
        idle = (await s.view("nodes"))["migrationsIdle"]
        assert idle == "the API server refused the last migration; see the scheduler log"
        await s.passes(5)
        assert (s.created(), s.migrations) == (3, [])
        await s.passes(8)
        assert (s.created(), (s.migrations, s.reserved), s.events) == (4, ORDERED, [STARTED])


async def test_lost_orders_yield_to_another() -> None:
    async with moving_cluster(with_another("tenant"), "migration: {settleSeconds: 0}") as s:
        s.cluster.faults.append(Fault(to("POST", "/tenant/virtualmachinemigrations"), times=99))
        await s.passes(30)
        asked = [call.path.split("/")[5] for call in s.cluster.made("POST", "/virtualmachinemigrations")]
        assert (asked, s.migrations) == (["tenant", "tenant", "default"], [("db", "n2", "")])


async def test_unanswered_order_is_found_by_name() -> None:
    async with moving_cluster() as s:
        s.cluster.faults.append(Fault(CREATION, is_applied=True))
        await s.passes(50)
        assert (s.created(), (s.migrations, s.reserved), s.events) == (1, ORDERED, [STARTED])
        assert 'autoscale_scheduler_migration_orders_total{outcome="unknown"} 1.0' in await s.metrics()


async def test_unreadable_order_is_forgotten() -> None:
    """A newer controller's phase, seen before the answer: the order would stay in doubt, and nothing would move."""
    async with moving_cluster() as s:
        s.cluster.faults.append(Fault(CREATION))
        await s.passes(SETTLED)
        (order,) = s.cluster.made("POST", "/virtualmachinemigrations")
        landed: Obj = dict(order.body or {})
        landed["metadata"] = landed["metadata"] | {"uid": "m-1", "creationTimestamp": s.cluster.stamp()}
        s.cluster.put(MIGRATIONS, landed | {"status": {"phase": "Unheard"}})
        await s.passes(2)
        assert (s.reserved, (await s.view("nodes"))["migrationsIdle"]) == (FULL, None)
        s.cluster.put(MIGRATIONS, landed | {"status": {"phase": "Pending"}})
        await s.passes(1)
        assert (s.migrations, s.reserved, s.created()) == ([("db", "n2", "Pending")], ("9500m", "2"), 1)


async def test_lost_order_keeps_room_until_settled() -> None:
    async with moving_cluster() as s:
        s.cluster.faults.append(Fault(CREATION))
        await s.passes(11)
        name = str(s.cluster.made("POST", "/virtualmachinemigrations")[0].body["metadata"]["name"])  # type: ignore[index]
        in_doubt = f"the API server has not confirmed yet that it created default/{name}"
        assert (s.created(), s.migrations, s.reserved) == (1, [], ("9500m", "2"))
        await s.passes(9)
        assert (s.created(), s.reserved, await s.told(POD)) == (1, ("9500m", "2"), (200, False, 2))
        assert (await s.view("nodes"))["migrationsIdle"] == in_doubt
        await s.passes(2)
        assert (s.created(), s.migrations, s.reserved, await s.told(POD)) == (1, [], FULL, (200, False, 2))
        await s.passes(12)
        assert (s.created(), (s.migrations, s.reserved)) == (2, ORDERED), "the node is full still: ordered anew"


async def test_late_order_is_adopted() -> None:
    async with moving_cluster() as s:
        s.cluster.faults.append(Fault(CREATION))
        await s.passes(SETTLED + 4)
        await s.cluster.call(s.cluster.made("POST", "/virtualmachinemigrations")[0])
        await s.passes(40)
        assert ((s.migrations, s.reserved), s.events) == (ORDERED, [STARTED])


async def test_cancelled_unmade_order_is_forgotten() -> None:
    async with moving_cluster() as s:
        s.cluster.faults.append(Fault(CREATION))
        await s.passes(11)
        (order,) = s.cluster.made("POST", "/virtualmachinemigrations")
        s.relieve()
        s.cluster.put(NODES, node("n2", unschedulable=True))
        await s.passes(30)
        assert (s.created(), s.migrations, s.reserved) == (1, [], ("2", "0"))
        s.cluster.put(NODES, node("n2"))
        await s.cluster.call(order)
        s.controller.accept()
        await s.passes(1)
        s.controller.fail("no luck")
        await s.passes(1)
        assert s.events[-1] == ("db", "MigrationFailed", "did not migrate from n1 to n2: no luck")
        assert 'autoscale_scheduler_migrations_total{outcome="failed"} 1.0' in await s.metrics()


async def test_crash_before_answer_leaves_one_order() -> None:
    async with moving_cluster() as s:
        s.cluster.faults.append(Fault(CREATION, is_applied=True))
        s.cluster.faults.append(Fault(to("GET", "/virtualmachinemigrations/")))
        await s.passes(11)
        await s.start()
        await s.passes(50)
        assert (s.created(), (s.migrations, s.reserved), s.events) == (1, ORDERED, [STARTED])


async def test_crash_before_order_leaves_nothing() -> None:
    async with moving_cluster() as s:
        s.cluster.faults.append(Fault(CREATION))
        await s.passes(11)
        s.relieve()
        await s.start()
        await s.passes(60)
        assert (s.created(), s.migrations, s.reserved) == (1, [], ("2", "0"))


async def test_api_outage_tries_one_order() -> None:
    async with moving_cluster() as s:
        await s.passes(9)
        s.cluster.go_away()
        await s.passes(30)
        assert (s.created(), s.migrations, s.reserved) == (1, [], ("9500m", "2"))
        s.cluster.come_back()
        await s.passes(8)
        assert (s.created(), s.migrations, s.reserved, await s.told(POD)) == (1, [], FULL, (200, False, 2))
        await s.passes(10)
        assert (s.created(), (s.migrations, s.reserved), s.events) == (2, ORDERED, [STARTED])


async def test_order_with_taken_name_is_read() -> None:
    async with moving_cluster() as s:
        taken = asyncio.Event()
        s.cluster.faults.append(Fault(CREATION, refuse=409, hold=taken))
        await s.passes(11)
        await s.cluster.call(s.cluster.made("POST", "/virtualmachinemigrations")[0])
        taken.set()
        await s.passes(60)
        assert (len(s.migrations), s.reserved, s.events) == (1, ("9500m", "2"), [STARTED])


async def test_order_to_gone_target_is_dropped() -> None:
    async with moving_cluster() as s:
        held_up = s.scheduler.parts.context.queues.creations
        await s.passes(9.9)
        s.cluster.remove("/api/v1/nodes", "", "n2")
        await s.passes(20)
        assert (s.created(), s.migrations, s.reserved, len(held_up)) == (0, [], ("9500m", "gone"), 0)
        assert (await s.view("nodes"))["nodes"][0]["stuck"] == (
            "no node has room below 90% of its watermark for any of 1 movable VMs"
        )


async def test_queued_order_ends_with_target() -> None:
    cluster = full_cluster()
    cluster.put(VMS, vm("other", 2, 8))
    cluster.put(PODS, vm_pod("other", "n1"))
    cluster.remove(PODS, "default", "foreign")
    async with moving_cluster(cluster, "migration: {maxPerNode: {out: 2}, maxPerCluster: 2}") as s:
        answered = asyncio.Event()
        s.cluster.faults.append(Fault(CREATION, hold=answered))
        s.cluster.put(NODES, node("n1", unschedulable=True))
        await s.passes(SETTLED)
        assert (s.created(), s.reserved) == (1, ("4", "4"))
        s.cluster.put(NODES, node("n2", unschedulable=True))
        await settle()
        answered.set()
        await settle()
        assert (s.created(), s.migrations, s.reserved) == (1, [("db", "n2", "")], ("4", "0")), "the other is not sent"
        await s.passes(2)
        assert (s.migrations, s.reserved) == ([], ("4", "0")), "and the first is called off"


async def test_a_name_that_is_taken_costs_a_second() -> None:
    async with moving_cluster() as s:
        wall = int(s.clock.wall())
        for second in (10, 11, 12):
            meta = {"name": f"db-{wall + second:x}", "namespace": "default", "uid": f"old-{second}"}
            ended = {"phase": "Succeeded"}
            s.cluster.put(MIGRATIONS, {"metadata": meta, "spec": {"vmName": "gone"}, "status": ended})
        await s.passes(12)
        assert (s.created(), s.reserved) == (0, FULL)
        await s.passes(2)
        assert (s.created(), s.reserved, s.events) == (1, ("9500m", "2"), [STARTED])
