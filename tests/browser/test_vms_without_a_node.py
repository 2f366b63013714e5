"""Every VM has its place on the page: without a node, too, and on nodes that the scheduler does not list."""

from __future__ import annotations

import pytest

from scheduler_plugin.dashboard.core import states
from tests.scheduler_plugin.fake_cluster import VMS

pytest.importorskip("playwright")
from protocol.units import Seconds
from tests.browser.chromium import PATIENCE, Visit, browsing, link, served, visit
from tests.browser.made_up_fleet import fleet, running_vm

pytestmark = pytest.mark.browser


async def rows(seen: Visit, table: str) -> list[str]:
    """The first cell of each row of a table below the bars."""
    cells = seen.tab.get_by_role("region", name=table, exact=True).locator("tbody tr td:first-child")
    return await cells.all_inner_texts()


async def with_tables(seen: Visit) -> None:
    await seen.tab.get_by_text("Show as tables").click()
    await seen.tab.get_by_role("region", name="Databases", exact=True).wait_for(timeout=PATIENCE)


async def test_vm_without_a_node_stands_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(states, "LONG", Seconds(1.0))
    cluster, told = fleet(2, 2)
    stuck = running_vm("stuck", "default", "", 2)
    cluster.put(VMS, {**stuck, "status": {"phase": "Pending"}})
    async with (
        browsing() as browser,
        served(cluster, told) as run,
        visit(browser, link(run), bypass_csp=True) as seen,
    ):
        await seen.shows("5 databases on 2 nodes")
        await seen.shows("has not started within a minute")
        await with_tables(seen)
        assert (await rows(seen, "Nodes"))[0] == "without a node"
        assert (await rows(seen, "Databases"))[0] == "default/stuck"
        assert await seen.violations() == []
        await seen.tab.get_by_label("Find a database or node").fill("STUCK")
        assert await rows(seen, "Databases") == ["default/stuck"]
        await seen.tab.get_by_role("region", name="Nodes", exact=True).get_by_text("without a node").click()
        await seen.shows("These databases wait for a node")
        assert seen.complaints == []


async def test_fleet_is_shown_without_a_scheduler() -> None:
    cluster, told = fleet(3, 2)
    told.scheduler.clear()
    async with browsing() as browser, served(cluster, told) as run, visit(browser, link(run)) as seen:
        await seen.shows("6 databases on 3 nodes")
        await with_tables(seen)
        assert await rows(seen, "Nodes") == ["node-1", "node-2", "node-3"]
        assert len(await rows(seen, "Databases")) == 6
        await seen.tab.get_by_role("region", name="Nodes", exact=True).get_by_text("node-2").click()
        await seen.shows("The scheduler does not list this node, or does not respond.")
        await seen.shows("Databases (2)")
        assert seen.complaints == []
