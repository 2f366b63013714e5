"""Details of one VM for a user: why it has its size, its warnings, and its history."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from protocol.kubernetes.objects import Json, JsonObject, name_of, uid_of
from protocol.messages import ObjectName
from scheduler_plugin.history.core.samples import SECOND, MoveRecord
from tests.fake_clock import settle
from tests.scheduler_plugin.dashboard.made_up_history import MadeUpHistory
from tests.scheduler_plugin.dashboard.page_cluster import Page, Told, page, put_vm
from tests.scheduler_plugin.fake_cluster import VMS
from tests.scheduler_plugin.objects import vm


async def told(run: Page, path: str = "/api/vms/default/db") -> Any:
    return (await run.http.get(path)).json()


async def test_gone_migrations_come_from_history() -> None:
    async with page() as run:
        await run.sign_in(run.links[-1])
        now, db = round(run.clock.wall() * SECOND), ObjectName("default", "db")
        moves = [
            MoveRecord(ObjectName("default", name), db, "n1", "n2", "Succeeded", now - ago, now - ago + 12_000)
            for name, ago in (("lately", 60_000), ("long-ago", 90_000_000))
        ]
        run.dashboard.details.history = MadeUpHistory([], moved=moves)
        assert [each["key"] for each in (await told(run, "/api/past/default/db?seconds=900"))["moves"]] == [
            "default/lately"
        ]


@pytest.mark.parametrize(("is_broken", "moves"), [(False, 1), (True, 0)])
async def test_a_history_that_cannot_be_read_has_nothing(is_broken: bool, moves: int) -> None:
    async with page() as run:
        await run.sign_in(run.links[-1])
        now, db = round(run.clock.wall() * SECOND), ObjectName("default", "db")
        moved = MoveRecord(db, db, "n1", "n2", "Succeeded", now - 9000, now)
        run.dashboard.details.history = MadeUpHistory([], moved=[moved], is_broken=is_broken)
        assert len((await told(run, "/api/past/default/db?seconds=900"))["moves"]) == moves


async def test_local_page_shows_vm_warnings() -> None:
    async with page() as run:
        await run.sign_in(run.links[-1])
        put_vm(run.cluster, "db")
        await settle()
        uid = uid_of(run.cluster.get(VMS, "default", "db"))
        at = "2026-01-01T00:00:00Z"
        warning: Json = {"type": "Warning", "reason": "GrowthDenied", "message": "no room", "lastTimestamp": at}
        run.cluster.events = [{**warning, "involvedObject": {"uid": uid}}]
        found = await told(run)
        assert (f"  Warning of {at}: GrowthDenied: no room" in found["story"], found["warnings"]) == (True, True)
        asked = run.cluster.made("GET", "/namespaces/default/events")
        assert [call.query for call in asked] == [{"fieldSelector": f"involvedObject.uid={uid}"}]
        run.cluster.events = None
        found = await told(run)
        assert ([each for each in found["story"] if "Warning" in each], found["warnings"]) == ([], False)


async def test_cluster_page_reads_no_events() -> None:
    async with page(on_a_cluster=True) as run:
        run.cluster.people = {"admin": {"*"}}
        put_vm(run.cluster, "db")
        await settle()
        await run.sign_in("admin")
        assert not (await told(run))["warnings"]
        assert run.cluster.made("GET", "/events") == []


class SilentNamespace(Told):
    """The agents of the namespace evil never respond."""

    async def of_vm(self, vm: JsonObject) -> Json | None:
        if name_of(vm).namespace == "evil":
            await asyncio.Event().wait()
        return {"vm": "default/db"}


async def test_silent_agents_delay_no_other_namespace() -> None:
    """A tenant who opened his own databases, with agents that he had made silent, took all places for details."""
    async with page() as run:
        await run.sign_in(run.links[-1])
        run.dashboard.details.sources = SilentNamespace()
        run.cluster.put(VMS, vm("db"))
        run.cluster.put(VMS, vm("db", namespace="evil"))
        opened = [asyncio.create_task(told(run, "/api/vms/evil/db")) for _ in range(40)]
        await settle()
        async with asyncio.timeout(2):
            assert (await told(run))["agent"] == {"vm": "default/db"}
        for task in opened:
            task.cancel()
        await asyncio.wait(opened)
