"""The page says that all is well only where all is known: before, and when something is silent, it says what is not."""

from __future__ import annotations

from unittest.mock import patch

import pytest

pytest.importorskip("playwright")
from tests.browser.chromium import Visit, browsing, link, served, visit
from tests.browser.made_up_fleet import fleet

pytestmark = pytest.mark.browser
HURRIED = "Date.now = (now => { const from = now(); return () => from + 20 * (now() - from); })(Date.now)"
"""To the page ten seconds without a heartbeat are more than three minutes."""
WELL = "No problems: every database has what it requested."


async def claims(seen: Visit) -> list[str]:
    """Statements that only a page with data about the fleet may make."""
    text = await seen.tab.inner_text("body")
    return [each for each in (WELL, "0 databases", "live") if each in text]


async def test_full_server_shows_no_empty_fleet() -> None:
    async with browsing() as browser, served(*fleet(2, 2)) as run:
        with patch.object(run.dashboard.readers, "is_full", return_value=True) as full:
            async with visit(browser, link(run)) as seen:
                await seen.shows("No response from the page's server yet")
                assert await claims(seen) == []
                full.return_value = False
                await seen.shows("4 databases")
                await seen.shows(WELL)


async def test_unlisted_cluster_shows_no_empty_fleet() -> None:
    cluster, told = fleet(2, 2)
    cluster.is_away = True
    async with (
        browsing() as browser,
        served(cluster, told, is_read=False) as run,
        visit(browser, link(run)) as seen,
    ):
        await seen.shows("The page's server is still listing the cluster")
        assert await claims(seen) == []
        cluster.come_back()
        await seen.shows("4 databases")
        await seen.shows(WELL)
        assert seen.complaints == []


async def test_silent_api_server_is_reported() -> None:
    cluster, told = fleet(2, 2)
    async with browsing() as browser, served(cluster, told) as run, visit(browser, link(run)) as seen:
        await seen.shows(WELL)
        cluster.go_away()
        await seen.shows("No data from the API server since")
        await seen.shows("partly stale")
        assert await claims(seen) == []
        cluster.come_back()
        await seen.shows(WELL)
        assert seen.complaints == []


async def test_silent_scheduler_is_reported() -> None:
    async with browsing() as browser, served(*fleet(2, 2)) as run, visit(browser, link(run)) as seen:
        await seen.shows(WELL)
        run.told.scheduler.clear()
        await seen.shows("The scheduler does not respond")
        assert await claims(seen) == []
        await run.stop()
        await seen.shows("No connection to the page's server")
        assert await claims(seen) == []


async def test_silent_connection_is_lost() -> None:
    async with browsing() as browser, served(*fleet(2, 2)) as run, visit(browser, link(run)) as seen:
        await seen.shows(WELL)
        # The page cannot connect again.
        with patch.object(run.dashboard.readers, "is_full", return_value=True):
            await seen.tab.evaluate(HURRIED)
            await seen.shows("No connection to the page's server")
            assert await claims(seen) == []
        await seen.shows(WELL)
