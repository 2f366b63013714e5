from __future__ import annotations

from protocol.kubernetes.objects import child
from scheduler_plugin.dashboard.core.frames import VM
from scheduler_plugin.dashboard.core.lasting import LONG
from scheduler_plugin.dashboard.core.rows import VmRow
from tests.fake_clock import settle
from tests.scheduler_plugin.dashboard.page_cluster import Page, page
from tests.scheduler_plugin.fake_cluster import VMS
from tests.scheduler_plugin.objects import vm


async def in_phase(run: Page, phase: str) -> None:
    made = vm("db", 1)
    made["status"] = {**child(made, "status"), "phase": phase}
    run.cluster.put(VMS, made)
    await settle()


async def is_waiting(run: Page) -> bool:
    """After one more look, which tells readers where it is news."""
    await run.dashboard.fleet.look()
    row = run.dashboard.fleet.journal.get(VM, "default/db")
    assert isinstance(row, VmRow)
    return row.waiting


async def test_a_vm_that_is_pending_for_long_stands_out_though_nothing_of_it_changes() -> None:
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
