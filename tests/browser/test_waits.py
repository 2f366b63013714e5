"""The page shows what a migration waits for."""

from __future__ import annotations

import pytest

pytest.importorskip("playwright")
from tests.browser.chromium import browsing, link, served, visit
from tests.browser.made_up_fleet import a_move, fleet
from tests.scheduler_plugin.fake_cluster import MIGRATIONS

pytestmark = pytest.mark.browser
WHY = "no node has room for 3 vCPU; closest is node-2"


async def test_migration_without_target_shows_wait_reason() -> None:
    """The page had ``node-1 ⇢ ?`` and no reason."""
    async with browsing() as browser, served(*fleet(2, 2)) as run, visit(browser, link(run)) as seen:
        await seen.shows("4 databases")
        move = a_move("shop", "db-1", "node-1", "")
        move["status"] = {"phase": "Pending", "sourceNode": "node-1", "conditions": [{"message": WHY}]}
        run.cluster.put(MIGRATIONS, move)
        await seen.tab.evaluate("location.hash = '#/migrations'")
        await seen.shows(WHY)
        assert seen.complaints == []
