"""Costs over HTTP: who may see them, how often the history is queried, and responses without a history."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from protocol.messages import ObjectName
from scheduler_plugin.dashboard.core.own_costs import NOT_KEPT
from scheduler_plugin.dashboard.cost_reports import MIN_CACHED, MOST_BILLS
from scheduler_plugin.history.core.samples import DAY, VmRecord
from scheduler_plugin.history.ports import Period, Usage
from tests.fake_clock import settle
from tests.scheduler_plugin.dashboard.made_up_history import MOST, MadeUpHistory
from tests.scheduler_plugin.dashboard.page_cluster import Page, page, put_vm


def a_history() -> MadeUpHistory:
    places = (("shop", "a", "n1"), ("bank", "b", "n1"))
    return MadeUpHistory([VmRecord(ObjectName(space, name), node, "", None, MOST) for space, name, node in places])


async def asked(run: Page, query: str) -> Any:
    answer = await run.http.get(f"/api/costs?{query}")
    return answer.json() if answer.status_code == 200 else answer.status_code


async def test_costs_are_limited_to_namespaces() -> None:
    async with page(on_a_cluster=True) as run:
        run.dashboard.details.reports.history = a_history()
        run.cluster.people = {"clerk": {"shop"}, "admin": {"*"}}
        put_vm(run.cluster, "a", "shop")
        await settle()
        assert await asked(run, "seconds=3600") == 401
        seen = {}
        for person in run.cluster.people:
            await run.sign_in(person)
            seen[person] = [each["name"] for each in (await asked(run, "seconds=3600&by=vm"))["lines"]]
        assert seen == {"clerk": ["shop/a"], "admin": ["bank/b", "shop/a"]}


async def test_history_query_is_cached() -> None:
    history = a_history()
    async with page() as run:
        run.dashboard.details.reports.history = history
        await run.sign_in(run.links[-1])
        for query in ("seconds=3600", "seconds=3600&by=vm", "seconds=3600&by=node&only=n1", "seconds=3600"):
            assert (await asked(run, query))["kept"]
        assert history.asked == ["usage"]
        await run.clock.advance(MIN_CACHED)
        await asked(run, "seconds=3600")
        assert history.asked == ["usage", "usage"]


async def test_bill_cache_is_bounded() -> None:
    async with page() as run:
        reports = run.dashboard.details.reports
        reports.history = a_history()
        await run.sign_in(run.links[-1])
        assert [await asked(run, query) for query in ("seconds=3601", "seconds=3600&by=label%3Dteam")] == [404, 404]
        for at in range(MOST_BILLS + 5):
            await asked(run, f"seconds=3600&by=vm&only=no-{at}")
        assert len(reports._bills) == MOST_BILLS


async def test_unreadable_history_knows_nothing() -> None:
    async with page() as run:
        await run.sign_in(run.links[-1])
        assert await asked(run, "") == NOT_KEPT
        run.dashboard.details.reports.history = MadeUpHistory([], is_broken=True)
        assert await asked(run, "") == NOT_KEPT


class SlowAboutWeeks(MadeUpHistory):
    """Delays queries about more than a day until ``let`` is called."""

    let: asyncio.Event

    async def usage(self, period: Period) -> Sequence[Usage]:
        if period.until - period.since > DAY:
            await self.let.wait()
        return await super().usage(period)


async def test_periods_are_computed_independently() -> None:
    history = SlowAboutWeeks(a_history().facts)
    history.let = asyncio.Event()
    async with page() as run:
        run.dashboard.details.reports.history = history
        await run.sign_in(run.links[-1])
        week = asyncio.create_task(asked(run, "seconds=604800"))
        await settle()
        assert (await asked(run, "seconds=3600"))["kept"]
        assert not week.done()
        history.let.set()
        assert (await week)["kept"]


async def test_costs_group_by_kept_labels() -> None:
    teams = (("a", "red"), ("b", "blue"), ("c", "red"))
    history = MadeUpHistory(
        [VmRecord(ObjectName("shop", name), "n1", "", None, MOST, (("team", team),)) for name, team in teams]
    )
    async with page() as run:
        reports = run.dashboard.details.reports
        reports.history, reports.labels = history, ["team"]
        await run.sign_in(run.links[-1])
        found = await asked(run, "seconds=3600&by=label%3Dteam")
        assert ([each["name"] for each in found["lines"]], found["labels"]) == (["red", "blue"], ["team"])
        assert await asked(run, "seconds=3600&by=label%3Dtier") == 404
