"""The status row: the page says what is not listed yet, and what is stale."""

from __future__ import annotations

from msgspec.structs import replace

from protocol.runtime.kubernetes.watches.informer import BACKOFF
from protocol.units import Seconds
from scheduler_plugin.dashboard.core.frames import STATUS
from scheduler_plugin.dashboard.core.rows import Row, StatusRow
from scheduler_plugin.dashboard.fleet import LONGEST_PAUSE
from tests.fake_clock import BEGAN
from tests.scheduler_plugin.dashboard.page_cluster import Page, nodes_answer, page
from tests.scheduler_plugin.fake_cluster import MIGRATIONS, Fault, to

WELL = StatusRow("scheduler", "", responding=True, ready=True, leader="s-1", listed=True)
AGAIN = Seconds(2 * BACKOFF.cap + LONGEST_PAUSE)
"""Everything is queried again within this time."""


async def polled_status(run: Page) -> Row | None:
    """The status row after one more poll."""
    await run.dashboard.fleet.poll()
    return run.dashboard.fleet.journal.get(STATUS, "scheduler")


async def test_unlisted_fleet_is_not_empty() -> None:
    async with page(is_away=True) as run:
        run.told.scheduler["/nodes"] = nodes_answer()
        await run.clock.advance(AGAIN)
        assert await polled_status(run) == replace(WELL, listed=False, silent=round(BEGAN + 1000.0))
        run.cluster.come_back()
        await run.clock.advance(AGAIN)
        assert await polled_status(run) == WELL


async def test_listing_completion_is_reported_at_once() -> None:
    async with page(is_away=True) as run:
        fleet = run.dashboard.fleet
        run.told.scheduler["/nodes"] = nodes_answer()
        await fleet.poll()
        told: list[Row | None] = []
        fleet.on_change = lambda: told.append(fleet.journal.get(STATUS, "scheduler"))
        fleet._listed("virtualmachines")
        assert told == []
        fleet._listed("pods")
        assert told == [replace(WELL, silent=round(run.clock.wall()))]


async def test_silent_api_server_is_dated() -> None:
    async with page() as run:
        run.told.scheduler["/nodes"] = nodes_answer()
        await run.clock.advance(AGAIN)
        assert await polled_status(run) == WELL
        run.cluster.go_away()
        await run.clock.advance(LONGEST_PAUSE)
        silent = await polled_status(run)
        assert isinstance(silent, StatusRow)
        assert 0 <= run.clock.wall() - silent.silent <= LONGEST_PAUSE
        await run.clock.advance(AGAIN)
        assert await polled_status(run) == replace(WELL, silent=silent.silent)
        run.cluster.come_back()
        await run.clock.advance(AGAIN)
        assert await polled_status(run) == WELL


async def test_missing_kind_is_not_stale() -> None:
    async with page(is_away=True) as run:
        run.told.scheduler["/nodes"] = nodes_answer()
        run.cluster.faults.append(Fault(to("GET", MIGRATIONS), refuse=404, times=1000))
        await run.clock.advance(AGAIN)
        run.cluster.come_back()
        await run.clock.advance(AGAIN)
        assert await polled_status(run) == WELL
