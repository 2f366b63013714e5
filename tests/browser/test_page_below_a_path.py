"""The page below a path that a proxy takes away, as an Ingress with a rewrite does."""

from __future__ import annotations

import pytest

pytest.importorskip("playwright")

from tests.browser.chromium import browsing, link, served, visit
from tests.browser.made_up_fleet import fleet, past_of
from tests.browser.test_page_in_a_browser import VIEWS, a_vm, opened

pytestmark = pytest.mark.browser


async def test_every_view_works_below_a_path() -> None:
    """Absolute paths would reach other services behind the same host."""
    cluster, told = fleet(24, 12)
    async with (
        browsing() as browser,
        served(cluster, told, history=past_of(cluster), prefix="/tools/autoscale") as run,
        visit(browser, link(run)) as seen,
    ):
        await seen.shows("288 databases")
        for path, text in VIEWS.values():
            await opened(seen, path.replace("default/db-0", a_vm(run)), text)
        assert [each for each in run.asked if not each.startswith(f"{run.prefix}/")] == []
        assert [each["path"] for each in await seen.context.cookies()] == [f"{run.prefix}/api"]
        assert seen.complaints == []
        await seen.tab.reload()
        await seen.shows("settings")
        await seen.tab.get_by_role("button", name="Sign out").click()
        await seen.shows("Open the last link")
        assert await seen.context.cookies() == []
