"""Sign-out, by the user or by expiry, removes all data of the session from the page."""

from __future__ import annotations

import pytest

from scheduler_plugin.dashboard.core.sessions import Sessions
from tests.scheduler_plugin.fake_cluster import VMS

pytest.importorskip("playwright")
from tests.browser.chromium import PATIENCE, Served, Visit, browsing, served, visit
from tests.browser.made_up_fleet import fleet

pytestmark = pytest.mark.browser
LONGEST_BETWEEN_QUESTIONS = 5500
"""Milliseconds: a view of a VM asks every five seconds."""


async def signed_in(seen: Visit) -> None:
    await seen.tab.get_by_label("Token").fill("clerk")
    await seen.tab.get_by_role("button", name="Sign in").click()
    await seen.shows("databases on")


async def shows_the_form_alone(seen: Visit) -> None:
    await seen.tab.get_by_role("heading", name="Sign in").wait_for(timeout=PATIENCE)
    content = await seen.tab.content()
    assert [each for each in ("shop", "db-", "sample fleet", "Migrations") if each in content] == []
    assert await seen.tab.title() == "Autoscaling"


def a_vm_of_the_shop(run: Served) -> str:
    return next(name for namespace, name in run.cluster.collections[VMS].objects if namespace == "shop")


async def test_expired_session_shows_nothing() -> None:
    cluster, told = fleet(3, 10)
    cluster.people = {"clerk": {"shop"}}
    async with (
        browsing() as browser,
        served(cluster, told, on_a_cluster=True) as run,
        visit(browser, run.url, bypass_csp=True) as seen,
    ):
        assert await seen.violations() == []
        await signed_in(seen)
        await seen.tab.evaluate("path => { location.hash = path }", f"#/vm/shop/{a_vm_of_the_shop(run)}")
        await seen.shows("Cost of the last 15 minutes")
        run.dashboard.authenticator.sessions = Sessions()
        await shows_the_form_alone(seen)
        run.asked.clear()
        for path in ("#/groups", "#/"):
            await seen.tab.evaluate("path => { location.hash = path }", path)
            await shows_the_form_alone(seen)
        await seen.tab.wait_for_timeout(LONGEST_BETWEEN_QUESTIONS)
        assert [path for path in run.asked if path.startswith("/api/")] == []
        await signed_in(seen)


async def test_a_button_signs_out() -> None:
    cluster, told = fleet(3, 10)
    cluster.people = {"clerk": {"shop"}}
    async with (
        browsing() as browser,
        served(cluster, told, on_a_cluster=True) as run,
        visit(browser, run.url) as seen,
    ):
        await signed_in(seen)
        await seen.tab.get_by_role("button", name="Sign out").click()
        await shows_the_form_alone(seen)
        assert await seen.context.cookies() == []
        await seen.tab.reload()
        await shows_the_form_alone(seen)
