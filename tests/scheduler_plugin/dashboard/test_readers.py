from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from protocol.kubernetes.access_reviews import Scope
from scheduler_plugin.dashboard.core.frames import HEARTBEAT
from scheduler_plugin.dashboard.core.sessions import Sessions
from scheduler_plugin.dashboard.core.visibility import ALL, VisibilityFilter
from scheduler_plugin.dashboard.readers import BEAT, MOST, MOST_OF_ONE, TICK
from tests.fake_clock import settle
from tests.scheduler_plugin.dashboard.core.test_frames import parsed
from tests.scheduler_plugin.dashboard.page_cluster import Page, a_node, a_pod, amounts, nodes_answer, page, put_vm


async def all_of_it() -> VisibilityFilter | None:
    return ALL


async def next_of(frames: AsyncIterator[bytes]) -> bytes:
    found = asyncio.ensure_future(anext(frames))
    await settle()
    return await found


async def ticked(run: Page) -> None:
    await run.clock.advance(TICK)
    await settle()


async def test_permit_reaches_page_within_tick() -> None:
    async with page() as run:
        put_vm(run.cluster, "db")
        await settle()
        frames = run.dashboard.readers.frames(all_of_it, "")
        event, _, whole = parsed(await next_of(frames))
        assert (event, [row[0] for row in whole["rows"]["vm"]]) == ("snapshot", ["default/db"])
        waiting = asyncio.ensure_future(anext(frames))
        put_vm(run.cluster, "db", cpu=4)
        await settle()
        await ticked(run)
        event, _, news = parsed(await waiting)
        columns = whole["columns"]["vm"]
        assert (event, news["rows"]["vm"][0][columns.index("use")]) == ("diff", [4000, 4096])


async def test_denials_come_with_next_sample() -> None:
    async with page() as run:
        put_vm(run.cluster, "db")
        run.told.scheduler["/nodes"] = nodes_answer(a_node("n1", a_pod("default/db", denied=amounts("2", "0"))))
        await run.dashboard.fleet.poll()
        frames = run.dashboard.readers.frames(all_of_it, "")
        _, _, whole = parsed(await next_of(frames))
        columns = whole["columns"]["vm"]
        assert whole["rows"]["vm"][0][columns.index("denied")] == [2000, 0]
        run.told.scheduler.clear()
        await run.dashboard.fleet.poll()
        _, _, news = parsed(await next_of(frames))
        assert news["rows"] == {"standing": [["scheduler", "", False, False, "", 0, 0, "", True, 0]]}


async def test_a_slow_reader_gets_the_newest_once() -> None:
    async with page() as run:
        frames = run.dashboard.readers.frames(all_of_it, "")
        await next_of(frames)
        for size in range(1, 6):
            put_vm(run.cluster, "db", cpu=size)
            await settle()
        _, _, news = parsed(await next_of(frames))
        assert [len(rows) for rows in news["rows"].values()] == [1]


async def test_returning_reader_gets_missed_changes() -> None:
    async with page() as run:
        put_vm(run.cluster, "a")
        await settle()
        frames = run.dashboard.readers.frames(all_of_it, "")
        _, last_id, _ = parsed(await next_of(frames))
        put_vm(run.cluster, "b")
        await settle()
        again = run.dashboard.readers.frames(all_of_it, last_id)
        event, _, news = parsed(await next_of(again))
        assert (event, [row[0] for row in news["rows"]["vm"]]) == ("diff", ["default/b"])


async def test_hidden_tab_resumes_from_event_id() -> None:
    async with page() as run:
        await run.sign_in(run.links[-1])
        put_vm(run.cluster, "a")
        await settle()
        _, first_id, _ = parsed(await next_of(run.dashboard.readers.frames(all_of_it, "")))
        put_vm(run.cluster, "b")
        await settle()
        _, second_id, _ = parsed(await next_of(run.dashboard.readers.frames(all_of_it, "")))
        put_vm(run.cluster, "c")
        await settle()
        by_itself = {"Last-Event-ID": second_id}  # how a browser connects again that has lost this connection
        asked = [
            asyncio.ensure_future(run.http.get("/api/events", params={"after": first_id}, headers=headers))
            for headers in (None, by_itself)
        ]
        await settle()
        run.dashboard.authenticator.sessions = Sessions()
        await run.clock.advance(BEAT)
        told = [parsed((await each).content) for each in asked]
        assert [(event, sorted(row[0] for row in news["rows"]["vm"])) for event, _, news in told] == [
            ("diff", ["default/b", "default/c"]),
            ("diff", ["default/c"]),
        ]


async def test_changed_rights_restart_the_stream() -> None:
    async with page() as run:
        put_vm(run.cluster, "a", "shop")
        await settle()
        sights: list[VisibilityFilter | None] = [VisibilityFilter(frozenset({Scope("bank")})), ALL, None]

        async def sees() -> VisibilityFilter | None:
            return sights.pop(0)

        frames = run.dashboard.readers.frames(sees, "")
        first, second = parsed(await next_of(frames)), asyncio.ensure_future(anext(frames))
        await settle()
        run.dashboard.readers.notify()
        await ticked(run)
        assert ("vm" in first[2]["rows"], parsed(await second)[0]) == (False, "snapshot")
        rest = asyncio.ensure_future(anext(frames, b"over"))
        await settle()
        run.dashboard.readers.notify()
        await ticked(run)
        assert (await rest, run.dashboard.readers.count) == (b"over", 0)


async def test_silence_is_broken_by_a_heartbeat() -> None:
    async with page() as run:
        frames = run.dashboard.readers.frames(all_of_it, "")
        await next_of(frames)
        waiting = asyncio.ensure_future(anext(frames))
        await settle()
        await run.clock.advance(BEAT)
        assert await waiting == HEARTBEAT


async def test_readers_are_bounded_per_person() -> None:
    async with page() as run:
        await run.sign_in(run.links[-1])
        readers = run.dashboard.readers
        (session,) = run.dashboard.authenticator.sessions._open.values()
        own = [readers.frames(all_of_it, "", session.user_key) for _ in range(MOST_OF_ONE)]
        for each in own:
            await next_of(each)
        assert (readers.is_full(session.user_key), readers.is_full(b"another")) == (True, False)
        assert await anext(readers.frames(all_of_it, "", session.user_key), b"too many") == b"too many"
        answer = await run.http.get("/api/events")
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")
        await own[0].aclose()  # type: ignore[attr-defined]
        assert (readers.is_full(session.user_key), readers.count) == (False, MOST_OF_ONE - 1)


async def test_full_page_displaces_the_greediest_crowd() -> None:
    """Users who may create service accounts in a namespace can sign in as many users."""
    async with page() as run:
        await run.sign_in(run.links[-1])
        readers = run.dashboard.readers
        modest = readers.frames(all_of_it, "", b"anna", b"anna")
        await next_of(modest)
        greedy = [readers.frames(all_of_it, "", b"%d" % (at // 16), b"tenant") for at in range(MOST - 1)]
        for each in greedy:
            await next_of(each)
        waiting = asyncio.ensure_future(anext(greedy[0], b"ended"))
        await settle()
        of_bob = readers.frames(all_of_it, "", b"bob", b"bob")
        assert await next_of(of_bob)
        await ticked(run)
        assert (await waiting, readers.count) == (b"ended", MOST)
        put_vm(run.cluster, "db", cpu=2)
        await settle()
        await ticked(run)
        assert await next_of(modest)


async def test_quiet_namespace_gets_heartbeats() -> None:
    async with page() as run:

        async def of_the_shop() -> VisibilityFilter | None:
            return VisibilityFilter(frozenset({Scope("shop")}))

        frames = run.dashboard.readers.frames(of_the_shop, "")
        await next_of(frames)
        waiting = asyncio.ensure_future(anext(frames))
        for at in range(round(BEAT / TICK) + 2):
            put_vm(run.cluster, "busy", "bank", cpu=1 + at % 2)
            await settle()
            await ticked(run)
        is_broken = waiting.done()
        waiting.cancel()
        assert is_broken
        assert await waiting == HEARTBEAT
