from __future__ import annotations

from protocol.kubernetes.objects import Json, child
from scheduler_plugin.dashboard.core.frames import VM
from scheduler_plugin.dashboard.core.rows import VmRow
from scheduler_plugin.dashboard.core.states import CALM, LONG
from scheduler_plugin.dashboard.texts import NO_CONTACT
from tests.fake_clock import settle
from tests.scheduler_plugin.dashboard.page_cluster import Page, a_node, a_pod, nodes_answer, page, put_vm
from tests.scheduler_plugin.fake_cluster import MIGRATIONS, VMS
from tests.scheduler_plugin.objects import vm


async def in_phase(run: Page, phase: str, cpu: int = 1) -> None:
    made = vm("db", cpu)
    made["status"] = {**child(made, "status"), "phase": phase}
    run.cluster.put(VMS, made)
    await settle()


async def seen(run: Page) -> VmRow:
    """The row after one more sample; changes are sent to readers."""
    await run.dashboard.fleet.poll()
    row = run.dashboard.fleet.journal.get(VM, "default/db")
    assert isinstance(row, VmRow)
    return row


async def is_waiting(run: Page) -> bool:
    return (await seen(run)).waiting


def told_by_scheduler(run: Page, *, silent: bool) -> None:
    run.told.scheduler["/nodes"] = nodes_answer(a_node("n1", a_pod("default/db", agentSilent=silent)))


async def test_long_pending_vm_stands_out() -> None:
    async with page() as run:
        await in_phase(run, "Pending")
        await run.clock.advance(LONG - 1.0)
        assert not await is_waiting(run)
        await run.clock.advance(1.0)
        assert await is_waiting(run)
        await in_phase(run, "Running")
        assert not await is_waiting(run)


async def test_a_vm_that_starts_again_begins_anew() -> None:
    async with page() as run:
        await in_phase(run, "Pending")
        await run.clock.advance(LONG - 1.0)
        await in_phase(run, "Running")
        await in_phase(run, "Pending")
        await run.clock.advance(LONG - 1.0)
        assert not await is_waiting(run)
        run.cluster.remove(VMS, "default", "db")
        await in_phase(run, "Pending")
        await run.clock.advance(LONG - 1.0)
        assert not await is_waiting(run)


async def test_migration_named_like_its_vm_takes_nothing_along() -> None:
    async with page() as run:
        await in_phase(run, "Pending")
        move: Json = {"metadata": {"namespace": "default", "name": "db", "uid": "m"}, "spec": {"vmName": "db"}}
        run.cluster.put(MIGRATIONS, move)
        await run.clock.advance(LONG)
        assert await is_waiting(run)
        run.cluster.remove(MIGRATIONS, "default", "db")
        await settle()
        await in_phase(run, "Pending", cpu=2)
        assert await is_waiting(run)


async def test_silent_agent_is_reported() -> None:
    async with page() as run:
        put_vm(run.cluster, "db")
        states = []
        for is_silent, passed in ((True, 0.0), (True, LONG - 1.0), (True, 1.0), (False, 0.0), (True, LONG - 1.0)):
            told_by_scheduler(run, silent=is_silent)
            await run.clock.advance(passed)
            found = await seen(run)
            states.append((found.state, found.trouble))
        calm = (CALM, "")
        assert states == [calm, calm, ("agent-problem", NO_CONTACT), calm, calm]


async def test_silent_scheduler_blames_no_agent() -> None:
    async with page() as run:
        put_vm(run.cluster, "db")
        await settle()
        told_by_scheduler(run, silent=True)
        await seen(run)
        run.told.scheduler.clear()
        await run.clock.advance(LONG)
        assert (await seen(run)).state == CALM


async def test_agent_failures_reach_every_part() -> None:
    async with page() as run:
        put_vm(run.cluster, "db")
        await settle()
        metrics: Json = {"with": "metrics", "reason": "no answer", "since_seconds": 7.0}
        states, answers = [], list[Json | None]([{"vm": "default/db", "troubles": each} for each in ([metrics], [])])
        for account in (*answers, None):
            run.told.agent = account
            await run.dashboard.sources.of_vm(run.cluster.get(VMS, "default", "db"))
            found = run.dashboard.fleet.journal.get(VM, "default/db")
            assert isinstance(found, VmRow)
            states.append((found.state, found.trouble))
        said = "its agent reports problems: metrics: no answer"
        assert states == [("agent-problem", said), (CALM, ""), (CALM, "")]


async def test_question_updates_agent_failure() -> None:
    async with page() as run:
        await run.sign_in(run.links[-1])
        put_vm(run.cluster, "db")
        await settle()
        run.told.agent = {"vm": "default/db", "troubles": [{"with": "scheduler", "reason": "503"}]}
        await run.http.get("/api/vms/default/db")
        assert (await seen(run)).trouble == "its agent reports problems: scheduler: 503"
        run.cluster.remove(VMS, "default", "db")
        await settle()
        put_vm(run.cluster, "db")
        await settle()
        assert (await seen(run)).state == CALM
