"""VMs that sleep are outlines on their node: counted, found and explained, and no problem."""

from __future__ import annotations

from typing import Any

import pytest

from protocol.kubernetes.timestamps import timestamp
from tests.scheduler_plugin.dashboard.page_cluster import PageCluster
from tests.scheduler_plugin.fake_cluster import VMS, Obj

pytest.importorskip("playwright")
from tests.browser.chromium import browsing, link, served, visit
from tests.browser.made_up_fleet import fleet, running_vm

pytestmark = pytest.mark.browser
OUTLINES = """() => {
  const pen = CanvasRenderingContext2D.prototype, stroke = pen.strokeRect;
  window.outlines = [];
  pen.strokeRect = function (...at) {
    if (this.getLineDash().length) window.outlines.push(at);
    return stroke.apply(this, at);
  };
}"""


def sleeper(name: str, phase: str = "Asleep") -> Obj:
    made = running_vm(name, "shop", "node-1", 1)
    made["metadata"]["annotations"] = {}
    made["status"] = {
        "node": "node-1",
        "phase": phase,
        "sleep": {"state": phase, "since": timestamp(0), "sessions": 3, "message": "10.1.2.3 sent to port 5432"},
    }
    return made


def with_sleepers(cluster: PageCluster, count: int) -> None:
    for at in range(count):
        cluster.put(VMS, sleeper(f"idle-{at}"))


@pytest.mark.parametrize("theme", ["dark", "light"])
async def test_sleepers_are_counted(theme: Any) -> None:
    """They are no problem, unlike one that wakes; the view of each says since when it sleeps."""
    cluster, told = fleet(2, 2)
    with_sleepers(cluster, 3)
    cluster.put(VMS, sleeper("stirs", "Waking"))
    options = {"color_scheme": theme, "bypass_csp": True}
    async with browsing() as browser, served(cluster, told) as run, visit(browser, link(run), **options) as seen:
        await seen.shows("3 asleep")
        await seen.shows("1 waking")
        problems = await seen.tab.locator(".attention").inner_text()
        assert ("shop/stirs" in problems, "shop/idle" in problems) == (True, False)
        assert "waking since 1970-01-01 00:00 UTC: 10.1.2.3 sent to port 5432" in problems
        assert await seen.violations() == []
        await seen.tab.get_by_role("button", name="3 asleep").click()
        await seen.tab.evaluate("path => { location.hash = path }", "#/vm/shop/idle-0")
        await seen.shows("asleep since 1970-01-01 00:00 UTC, 3 sessions open")
        await seen.shows("Size on wake")
        assert await seen.violations() == []
        assert seen.complaints == []


@pytest.mark.parametrize(("sleepers", "outlines"), [(3, 3), (400, 1)])
async def test_sleepers_are_outlines(sleepers: int, outlines: int) -> None:
    """Each has one as long as it can be seen; a crowd shares one."""
    cluster, told = fleet(1, 2)
    with_sleepers(cluster, sleepers)
    async with browsing() as browser, served(cluster, told) as run, visit(browser, link(run)) as seen:
        await seen.shows(f"{sleepers} asleep")
        await seen.tab.evaluate(OUTLINES)
        await seen.tab.get_by_role("button", name="Memory").click()
        drawn = "count => new Set(window.outlines.map(String)).size >= count"
        await seen.tab.wait_for_function(drawn, arg=outlines)
        widths = await seen.tab.evaluate("window.outlines.map(([, , width]) => width)")
        assert min(widths) > 0
        assert seen.complaints == []
