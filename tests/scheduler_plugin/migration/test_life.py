"""One migration from the first pressure until its object is deleted, and which VMs never move (S4.8, S4.9)."""

from __future__ import annotations

import copy
from typing import Any

from scheduler_plugin.planner.victims import RECENT
from scheduler_plugin.settings.document import parse_settings
from tests.scheduler_plugin.fake_cluster import MIGRATIONS, NODES, PODS, VMS, Fault, to
from tests.scheduler_plugin.migration.moving_cluster import (
    BECAUSE,
    FULL,
    POD,
    SETTLED,
    STARTED,
    SUCCEEDED,
    full_cluster,
    moving_cluster,
    on_its_way,
)
from tests.scheduler_plugin.objects import node, vm, vm_pod
from tests.scheduler_plugin.running import SETTINGS


async def test_full_node_sheds_vm_step_by_step() -> None:
    async with moving_cluster() as s:
        assert (s.migrations, s.reserved, await s.told(POD)) == ([], FULL, (200, False, 2))
        await s.passes(SETTLED)
        assert (s.migrations, s.reserved) == ([("db", "n2", "")], ("9500m", "2")), "room is kept on the target"
        assert await s.told(POD, 2) == (200, False, 2), "it is not told to hold still before its target has a node"
        s.controller.accept()
        s.controller.make_target()
        await s.passes(1)
        assert (s.migrations, s.reserved) == ([("db", "n2", "Pending")], ("9500m", "2"))
        assert (await s.placed(), s.reserved) == ("n2", ("9500m", "2")), "never reserved twice"
        assert await s.told(POD, 4) == (200, True, 2), "now it is, and grows no more"
        s.controller.transfer()
        await s.passes(1)
        assert (await s.told(POD), s.events) == ((200, True, 2), [STARTED])
        s.controller.hand_over()
        await s.passes(1)
        assert (await s.told(POD), s.reserved) == ((503, False, None), ("9500m", "2"))
        target = s.controller.target
        s.controller.succeed()
        await s.passes(1)
        assert (s.migrations, s.reserved) == ([("db", "n2", "Succeeded")], ("7500m", "2"))
        assert await s.told(target, 4) == (200, False, 4), "it may grow again at once, where it is now"
        assert (s.events, s.created()) == ([STARTED, SUCCEEDED], 1)


async def test_succeeded_migration_is_kept_one_hour() -> None:
    async with moving_cluster() as s:
        await s.moved()
        s.clock.jump(RECENT - 10)
        await s.passes(1)
        assert s.migrations == [("db", "n2", "Succeeded")]
        await s.passes(20)
        s.controller.obey_deletion()
        await s.passes(1)
        assert (s.migrations, s.reserved, s.created()) == ([], ("7500m", "2"), 1)
        assert s.events == [STARTED, SUCCEEDED]


async def test_moved_vm_rests_on_full_node() -> None:
    async with moving_cluster() as s:
        await s.moved()
        s.fill("n2", "7500m")
        await s.passes(200)
        assert (s.created(), (await s.view("nodes"))["nodes"][1]["stuck"]) == (
            1,
            "no VM may move: 1 in cooldown after a migration",
        )


async def test_failed_migration_is_retried_later() -> None:
    async with on_its_way() as s:
        await s.passes(1)
        s.controller.fail("the target's guest died")
        await s.passes(1)
        failed = ("db", "MigrationFailed", "did not migrate from n1 to n2: the target's guest died")
        assert (s.reserved, await s.told(POD, 4), s.events) == (FULL, (200, False, "2500m"), [STARTED, failed])
        await s.passes(50)
        assert s.created() == 1, "it is left alone for a minute"
        await s.passes(20)
        assert (s.migrations, s.reserved) == ([("db", "n2", "Failed"), ("db", "n2", "")], ("10", "2500m"))


async def test_deleted_migration_cancels_and_rests() -> None:
    async with moving_cluster() as s:
        await s.started()
        await s.placed()
        name = s.controller.name
        await s.cluster.call(s.deletion(name))
        await s.passes(1)
        assert (await s.view("nodes"))["migrations"][0]["leaving"] is True
        s.controller.obey_deletion()
        await s.passes(1)
        cancelled = ("db", "MigrationFailed", "did not migrate from n1 to n2: cancelled: its object was deleted")
        assert (s.migrations, s.reserved, await s.told(POD)) == ([], FULL, (200, False, 2))
        assert s.events == [STARTED, cancelled]
        await s.passes(100)
        assert s.created() == 1


async def test_pressure_that_goes_by_itself_moves_nobody() -> None:
    async with moving_cluster() as s:
        await s.passes(8)
        s.relieve()
        await s.passes(60)
        assert (s.created(), s.reserved) == (0, ("2", "0"))


async def test_needless_unbegun_move_is_cancelled() -> None:
    async with moving_cluster() as s:
        await s.passes(SETTLED)
        s.controller.accept()
        s.relieve()
        await s.passes(15)
        s.controller.obey_deletion()
        await s.passes(1)
        assert (s.migrations, s.reserved, await s.told(POD)) == ([], ("2", "0"), (200, False, 2))
        why = "did not migrate from n1 to n2: cancelled: node n1 no longer needs it"
        assert s.events == [STARTED, ("db", "MigrationFailed", why)]


async def test_cordoned_node_is_drained_despite_room() -> None:
    cluster = full_cluster()
    cluster.remove(PODS, "default", "foreign")
    async with moving_cluster(cluster) as s:
        s.cluster.put(NODES, node("n1", unschedulable=True))
        await s.passes(SETTLED)
        assert (s.migrations, s.reserved) == ([("db", "n2", "")], ("2", "2"))
        assert s.events == [("db", "MigrationStarted", "migrating from n1 to n2: node n1 is cordoned")]


async def test_opted_out_vm_blocks_node() -> None:
    cluster = full_cluster()
    obj = vm("db", 2, 8)
    obj["metadata"]["labels"]["autoscaling.neon.tech/auto-migration-enabled"] = "false"
    cluster.put(VMS, obj)
    async with moving_cluster(cluster) as s:
        await s.passes(60)
        view = await s.view("explain/default/db")
        assert (s.created(), view["mayMove"], view["stuck"]) == (
            0,
            False,
            {"n1": "no VM may move: 1 kept in place by a label or annotation"},
        )
        assert "autoscale_scheduler_migration_stuck_nodes 1.0" in await s.metrics()


async def test_disabled_migrations_stop_moves() -> None:
    async with moving_cluster(more="migration: {enabled: false}") as s:
        await s.passes(60)
        idle = "migration.enabled is false in the settings"
        assert (s.created(), (await s.view("nodes"))["migrationsIdle"]) == (0, idle)
        assert "autoscale_scheduler_migrations_enabled 0.0" in await s.metrics()
        s.scheduler.parts.context.feed.apply_settings(
            parse_settings(SETTINGS + "migration: {settleSeconds: 10, maxBandwidth: 64Mi, timeoutSeconds: 60}")
        )
        await s.passes(2)
        spec = s.controller.migration["spec"]
        assert (s.migrations, spec["completionTimeout"], spec["maxBandwidth"]) == ([("db", "n2", "")], 60, "64Mi")


async def test_migrations_are_optional_until_present() -> None:
    cluster = full_cluster()
    cluster.faults.append(Fault(to("GET", MIGRATIONS), refuse=404))
    async with moving_cluster(cluster) as s:
        await s.passes(30)
        assert ((await s.scheduler.probe("readyz")).text, await s.told(POD)) == ("ok\n", (200, False, 2))
        idle = "the cluster has no VirtualMachineMigrations (its CRD is missing)"
        assert (s.created(), (await s.view("nodes"))["migrationsIdle"]) == (0, idle)
        assert 'autoscale_scheduler_watch_missing{kind="virtualmachinemigrations"} 1.0' in await s.metrics()
        await s.passes(32)
        assert (s.migrations, (await s.view("nodes"))["migrationsIdle"]) == ([("db", "n2", "")], None)
        assert 'autoscale_scheduler_watch_missing{kind="virtualmachinemigrations"} 0.0' in await s.metrics()


async def test_manual_migration_uses_any_room() -> None:
    cluster = full_cluster()
    cluster.remove(PODS, "default", "foreign")
    async with moving_cluster(cluster) as s:
        s.order_by_hand()
        s.controller.accept()
        s.controller.make_target()
        await s.passes(1)
        assert (s.reserved, await s.told(POD)) == (("2", "0"), (200, False, 2)), "no room is held, and the VM goes on"
        assert (await s.placed(), s.reserved) == ("n2", ("2", "2")), "never onto the node that it leaves"
        s.controller.transfer()
        s.controller.hand_over()
        s.controller.succeed()
        await s.passes(400)
        assert (s.migrations, s.reserved) == ([("db", "", "Succeeded")], ("0", "2")), "we clear away only what is ours"
        assert s.events == [("db", "MigrationStarted", "migrating from n1 to a node not chosen yet"), SUCCEEDED]


async def test_people_see_who_moves_where_and_why() -> None:
    async with moving_cluster() as s:
        await s.started()
        await s.placed()
        await s.passes(1)
        name = s.controller.name
        shown: dict[str, Any] = {
            "name": f"default/{name}",
            "vm": "default/db",
            "phase": "Pending",
            "from": "n1",
            "to": "n2",
            "byScheduler": True,
            "leaving": False,
            "seenForSeconds": 3.0,
            "reason": f"{BECAUSE}; moving it frees 2 vCPU and 8 GiB and copies 8 GiB; its load is unknown",
            "problem": None,
            "totalSeconds": None,
            "downtimeSeconds": None,
        }
        assert (await s.view("nodes"))["migrations"] == [shown]
        view = await s.view("explain/default/db")
        held = [pod["holdsStill"] for pod in view["pods"]]
        assert held == [True, False]
        pods = [(pod["pod"], pod["node"], pod["migrating"]) for pod in view.pop("pods")]
        assert pods == [("default/db-pod", "n1", True), (f"default/{name}-pod", "n2", False)]
        assert view == {
            "vm": "default/db",
            "leading": True,
            "leader": "us",
            "mayMove": True,
            "staysBecause": None,
            "unreadableConstraints": None,
            "refusedTargets": {},
            "problems": [],
            "migrationsIdle": None,
            "stuck": {},
            "makingRoom": [],
            "noRoomToGrow": None,
            "gaveBack": None,
            "migrations": [shown],
        }


async def test_metrics_count_each_migration_once() -> None:
    async with moving_cluster() as s:
        await s.started()
        assert 'autoscale_scheduler_migrations_active{phase="pending"} 1.0' in await s.metrics()
        await s.finished()
        page = await s.metrics()
        for line in (
            'autoscale_scheduler_migration_orders_total{outcome="created"} 1.0',
            'autoscale_scheduler_migrations_total{outcome="succeeded"} 1.0',
            'autoscale_scheduler_migrations_active{phase="pending"} 0.0',
            "autoscale_scheduler_migration_seconds_sum 1.5",
            "autoscale_scheduler_migration_downtime_seconds_sum 0.031",
            "autoscale_scheduler_migrations_enabled 1.0",
            "autoscale_scheduler_migration_stuck_nodes 0.0",
        ):
            assert line in page
        await s.start()
        await s.passes(5)
        assert 'autoscale_scheduler_migrations_total{outcome="succeeded"}' not in await s.metrics()
        assert s.events == [STARTED, SUCCEEDED], "an event that was told is not told again"


async def test_two_vms_leave_one_after_the_other() -> None:
    cluster = full_cluster()
    cluster.put(VMS, vm("other", 2, 8))
    cluster.put(PODS, vm_pod("other", "n1"))
    foreign = copy.deepcopy(cluster.get(PODS, "default", "foreign"))
    foreign["spec"]["containers"][0]["resources"]["requests"]["cpu"] = "5900m"
    cluster.put(PODS, foreign)
    async with moving_cluster(cluster) as s:
        s.cluster.put(NODES, node("n1", unschedulable=True))
        await s.passes(SETTLED)
        first = s.migrations
        await s.passes(5)
        assert (first, s.migrations) == ([("db", "n2", "")], first), "one at a time leaves a node"
        await s.carried_out()
        await s.passes(3)
        assert s.migrations == [("db", "n2", "Succeeded"), ("other", "n2", "")]
