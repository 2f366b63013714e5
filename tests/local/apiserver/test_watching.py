"""Watches that expire, time out, or are closed."""

from __future__ import annotations

import asyncio
import json

from deploy.local.apiserver.apimachinery.jsonvalue import JsonObject
from deploy.local.apiserver.registry.api import RequestTarget
from deploy.local.apiserver.registry.watching import Watch, WatchOptions
from deploy.local.apiserver.resources.builtins import BUILTINS
from deploy.local.apiserver.resources.catalog import Catalog
from deploy.local.apiserver.storage.database import Key, ObjectDatabase
from deploy.local.apiserver.storage.store import ObjectStore

PODS = Catalog(BUILTINS).by_key("pods")


def filled(limit: int, names: str) -> ObjectStore:
    store = ObjectStore(ObjectDatabase(None), limit)
    for name in names:
        store.create(Key("pods", "n", name), {"metadata": {"name": name, "uid": name}})
    return store


async def told(store: ObjectStore, options: WatchOptions, closing: asyncio.Event) -> list[JsonObject]:
    assert PODS is not None
    chunks = [chunk async for chunk in Watch(store, RequestTarget(PODS, "n"), options, None).lines(closing)]
    return [json.loads(line) for line in b"".join(chunks).splitlines()]


def closed() -> asyncio.Event:
    closing = asyncio.Event()
    closing.set()
    return closing


async def test_compacted_revision_is_gone() -> None:
    (event,) = await told(filled(2, "abcd"), WatchOptions(resource_version="2"), asyncio.Event())
    assert (event["type"], event["object"]["code"], event["object"]["reason"]) == ("ERROR", 410, "Expired")
    assert event["object"]["message"].startswith("too old resource version: 2 (")


async def test_a_revision_of_another_life_is_gone_too() -> None:
    (event,) = await told(filled(9, "a"), WatchOptions(resource_version="999"), asyncio.Event())
    assert (event["type"], event["object"]["code"]) == ("ERROR", 410)


async def test_timed_out_watch_ends_with_bookmark() -> None:
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


async def test_event_text_is_shared_by_watchers() -> None:
    store = filled(9, "a")
    (change,) = store.history("pods").since(store.history("pods").position_after(store.revision - 1))
    assert PODS is not None
    options = WatchOptions(resource_version=str(store.revision - 1))
    for _ in range(2):
        lines = Watch(store, RequestTarget(PODS, "n"), options, None).lines(asyncio.Event())
        assert await anext(lines) == change.line
        await lines.aclose()  # type: ignore[attr-defined]  # an async generator, declared as the iterator it is


async def test_final_bookmark_skips_no_event() -> None:
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


async def test_quiet_bookmark_skips_no_event() -> None:
    store = filled(9, "a")
    options = WatchOptions(resource_version=str(store.revision), bookmarks=True, bookmark_every=0)
    assert PODS is not None
    lines = Watch(store, RequestTarget(PODS, "n"), options, None).lines(asyncio.Event())
    due = asyncio.ensure_future(anext(lines))
    asyncio.get_running_loop().call_soon(  # the wait is over by now, and its task has not gone on yet
        store.create, Key("pods", "n", "late"), {"metadata": {"name": "late", "uid": "late"}}
    )
    told_at_once = [json.loads(line)["type"] for line in (await due).splitlines()]
    assert told_at_once in (["ADDED"], ["ADDED", "BOOKMARK"])
    await lines.aclose()  # type: ignore[attr-defined]  # an async generator, declared as the iterator it is
