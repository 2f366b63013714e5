"""Tabs of the page do not use up connections: a hidden tab holds none, and reconnects when it is shown."""

from __future__ import annotations

import asyncio

import pytest

from tests.scheduler_plugin.fake_cluster import VMS

pytest.importorskip("playwright")
from tests.browser.chromium import PATIENCE, browsing, link, served, visit
from tests.browser.made_up_fleet import fleet, running_vm

pytestmark = pytest.mark.browser
TABS = 8
HIDDEN = """isHidden => {
  Object.defineProperty(document, "hidden", { configurable: true, get: () => isHidden });
  document.dispatchEvent(new Event("visibilitychange"));
}"""
"""As a browser does when another tab is chosen; a headless one shows all of them."""


async def test_hidden_tab_disconnects_and_resumes() -> None:
    async with browsing() as browser, served(*fleet(2, 2)) as run, visit(browser, link(run)) as seen:
        await seen.shows("4 databases")
        await seen.tab.evaluate(HIDDEN, True)
        async with asyncio.timeout(PATIENCE / 1000):
            while run.dashboard.readers.count:
                await seen.tab.wait_for_timeout(50)
        run.cluster.put(VMS, running_vm("new", "shop", "node-1", 1))
        assert "5 databases" not in await seen.tab.inner_text("main")
        async with seen.tab.expect_request("**/api/events?after=*"):
            await seen.tab.evaluate(HIDDEN, False)
        await seen.shows("5 databases")
        await seen.shows("live")
        assert seen.complaints == []


async def test_more_tabs_than_connections_show_the_fleet() -> None:
    async with browsing() as browser, served(*fleet(2, 2)) as run, visit(browser, link(run)) as seen:
        await seen.shows("4 databases")
        for _ in range(TABS):
            await seen.tab.evaluate(HIDDEN, True)
            seen.tab = await seen.context.new_page()
            await seen.tab.goto(run.url)
            await seen.shows("4 databases")
