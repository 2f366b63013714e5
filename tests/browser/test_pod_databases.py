"""A postgres in a pod has its block, its row and its view, as a VM has; its name has a slash."""

from __future__ import annotations

import pytest

from tests.pod_databases import pod_database
from tests.scheduler_plugin.fake_cluster import PODS

pytest.importorskip("playwright")
from tests.browser.chromium import browsing, served, visit
from tests.browser.made_up_fleet import fleet

pytestmark = pytest.mark.browser


async def test_pod_has_its_view() -> None:
    cluster, told = fleet(2, 2)
    cluster.put(PODS, pod_database(node="node-1"))
    told.agent = {"because": "holding: less has not been proven to be enough"}
    async with browsing() as browser, served(cluster, told) as run:
        link = f"{run.url}#token={run.links[-1]}"
        async with visit(browser, link) as seen:
            await seen.shows("5 databases on 2 nodes")
            await seen.tab.get_by_text("Show as tables").click()
            await seen.tab.get_by_role("region", name="Databases", exact=True).get_by_text("default/pod/pg-1").click()
            await seen.shows("Applied")
            await seen.shows("its container postgres requests now: 1 vCPU and 1Gi")
            await seen.shows("Its agent: holding")
            assert seen.tab.url.endswith("#/vm/default/pod/pg-1")
            await seen.tab.reload()
            await seen.shows("Applied")
            await seen.tab.get_by_role("link", name="node-1").first.click()
            await seen.shows("Databases (3)")
            assert seen.complaints == []
