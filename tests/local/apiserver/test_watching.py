"""Watches that lose their place, end by themselves, or are told to end."""

from __future__ import annotations

import asyncio
import json

from deploy.local.apiserver.apimachinery.jsonvalue import JsonObject
from deploy.local.apiserver.registry.api import Target
from deploy.local.apiserver.registry.watching import Watch, WatchOptions
from deploy.local.apiserver.resources.builtins import BUILTINS
from deploy.local.apiserver.resources.catalog import Catalog
from deploy.local.apiserver.storage.database import Database
from deploy.local.apiserver.storage.history import Key
from deploy.local.apiserver.storage.store import Store

PODS = Catalog(BUILTINS).by_key("pods")


def filled(limit: int, names: str) -> Store:
    store = Store(Database(None), limit)
    for name in names:
        store.create(Key("pods", "n", name), {"metadata": {"name": name, "uid": name}})
    return store


async def told(store: Store, options: WatchOptions, closing: asyncio.Event) -> list[JsonObject]:
    assert PODS is not None
    chunks = [chunk async for chunk in Watch(store, Target(PODS, "n"), options, None).lines(closing)]
    return [json.loads(line) for line in b"".join(chunks).splitlines()]


def closed() -> asyncio.Event:
    closing = asyncio.Event()
    closing.set()
    return closing


async def test_a_revision_that_is_no_longer_known_is_gone() -> None:
    (event,) = await told(filled(2, "abcd"), WatchOptions(resource_version="2"), asyncio.Event())
    assert (event["type"], event["object"]["code"], event["object"]["reason"]) == ("ERROR", 410, "Expired")
    assert event["object"]["message"].startswith("too old resource version: 2 (")


async def test_a_revision_of_another_life_is_gone_too() -> None:
    (event,) = await told(filled(9, "a"), WatchOptions(resource_version="999"), asyncio.Event())
    assert (event["type"], event["object"]["code"]) == ("ERROR", 410)


async def test_a_watch_whose_time_is_up_ends_with_a_bookmark() -> None:
    store = filled(9, "ab")
    options = WatchOptions(resource_version=str(store.revision), bookmarks=True, timeout=0)
    (event,) = await told(store, options, asyncio.Event())
    assert (event["type"], event["object"]["metadata"]["resourceVersion"]) == ("BOOKMARK", str(store.revision))


async def test_a_server_that_closes_ends_its_watches() -> None:
    events = await told(filled(9, "ab"), WatchOptions(), closed())
    assert [(event["type"], event["object"]["metadata"]["name"]) for event in events] == [
        ("ADDED", "a"),
        ("ADDED", "b"),
    ]


async def test_the_text_of_an_event_is_made_once_for_all_watchers() -> None:
    store = filled(9, "a")
    (change,) = store.history("pods").since(store.history("pods").place_after(store.revision - 1))
    assert PODS is not None
    options = WatchOptions(resource_version=str(store.revision - 1))
    for _ in range(2):
        lines = Watch(store, Target(PODS, "n"), options, None).lines(asyncio.Event())
        assert await anext(lines) == change.line
        await lines.aclose()  # type: ignore[attr-defined]  # an async generator, declared as the iterator it is


async def test_a_bookmark_passes_over_nothing_that_came_while_the_watch_ended() -> None:
    store = filled(9, "a")
    options = WatchOptions(resource_version=str(store.revision), bookmarks=True, timeout=0)
    store.create(Key("pods", "n", "late"), {"metadata": {"name": "late", "uid": "late"}})
    for closing in (asyncio.Event(), closed()):
        added, bookmark = await told(store, options, closing)
        assert (added["type"], added["object"]["metadata"]["name"]) == ("ADDED", "late")
        assert (bookmark["type"], bookmark["object"]["metadata"]["resourceVersion"]) == (
            "BOOKMARK",
            str(store.revision),
        )


async def test_a_bookmark_of_a_quiet_watch_passes_over_nothing_that_came_as_it_was_due() -> None:
    store = filled(9, "a")
    options = WatchOptions(resource_version=str(store.revision), bookmarks=True, bookmark_every=0)
    assert PODS is not None
    lines = Watch(store, Target(PODS, "n"), options, None).lines(asyncio.Event())
    due = asyncio.ensure_future(anext(lines))
    asyncio.get_running_loop().call_soon(  # the wait is over by now, and its task has not gone on yet
        store.create, Key("pods", "n", "late"), {"metadata": {"name": "late", "uid": "late"}}
    )
    told_at_once = [json.loads(line)["type"] for line in (await due).splitlines()]
    assert told_at_once in (["ADDED"], ["ADDED", "BOOKMARK"])
    await lines.aclose()  # type: ignore[attr-defined]  # an async generator, declared as the iterator it is
