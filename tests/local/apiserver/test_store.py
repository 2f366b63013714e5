"""The store: order, staleness, the past, and what a restart finds."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deploy.local.apiserver.apimachinery.jsonvalue import JsonObject
from deploy.local.apiserver.storage.database import Key, ObjectDatabase
from deploy.local.apiserver.storage.store import (
    ChangeHistory,
    ChangeType,
    ObjectStore,
    StaleError,
    StoredChange,
    StoredObject,
    TooOldError,
)


def key(name: str, namespace: str = "n") -> Key:
    return Key("things", namespace, name)


def body(name: str, **more: object) -> JsonObject:
    return {"metadata": {"name": name, "uid": name}, **more}


def store(limit: int = 100) -> ObjectStore:
    return ObjectStore(ObjectDatabase(None), limit)


def names(found: list[StoredObject]) -> list[tuple[str, str]]:
    return [(one.key.namespace, one.key.name) for one in found]


def test_lists_are_sorted_by_namespace_and_name() -> None:
    filled = store()
    for namespace, name in (("b", "1"), ("a", "2"), ("ab", "0"), ("a", "1")):
        filled.create(key(name, namespace), body(name))
    assert names(filled.objects("things")) == [("a", "1"), ("a", "2"), ("ab", "0"), ("b", "1")]
    assert names(filled.objects("things", "a")) == [("a", "1"), ("a", "2")]
    assert list(filled.resources()) == ["things"]


def test_stale_writes_conflict() -> None:
    filled = store()
    first = filled.create(key("a"), body("a"))
    second = filled.replace(first, body("a", spec=1))
    with pytest.raises(StaleError):
        filled.replace(first, body("a", spec=2))
    with pytest.raises(StaleError):
        filled.delete(first)
    with pytest.raises(StaleError):
        filled.create(key("a"), body("a"))
    assert filled.get(key("a")) is second


def test_kept_history_can_be_listed() -> None:
    filled = store(limit=3)
    first = filled.create(key("a"), body("a"))
    moment = filled.revision
    changed = filled.replace(first, body("a", spec=1))
    other = filled.create(key("b", "m"), body("b"))
    filled.delete(changed)
    assert filled.list_at("things", "", moment) == [first]
    assert filled.list_at("things", "m", moment) == []
    assert filled.list_at("things", "", other.revision) == [other, changed]
    filled.delete(other)
    with pytest.raises(TooOldError) as too_old:
        filled.list_at("things", "", moment)
    assert too_old.value.floor > moment


def test_observers_hear_of_every_change_in_order() -> None:
    filled = store()
    heard: list[tuple[ChangeType, int]] = []
    filled.observe(lambda change: heard.append((change.type, change.revision)))
    first = filled.create(key("a"), body("a"))
    second = filled.replace(first, body("a", spec=1))
    last = filled.delete(second)
    assert heard == [
        (ChangeType.ADDED, first.revision),
        (ChangeType.MODIFIED, second.revision),
        (ChangeType.DELETED, last.revision),
    ]
    assert last.revision > second.revision


def test_dropped_history_ends_cursors() -> None:
    history = ChangeHistory(limit=2, floor=10)

    def change(revision: int) -> StoredChange:
        stored = StoredObject(key("a"), revision, body("a"), b"{}")
        return StoredChange(ChangeType.MODIFIED, stored, None, b"")

    place = history.position_after(10)
    for revision in (11, 12):
        history.append(change(revision))
    assert [one.revision for one in history.since(place)] == [11, 12]
    history.append(change(15))
    with pytest.raises(TooOldError):
        history.since(place)
    with pytest.raises(TooOldError):
        history.position_after(10)
    assert [one.revision for one in history.since(history.position_after(11))] == [12, 15]
    assert history.since(history.position_after(15)) == []


async def test_wait_ends_on_change_call_or_timeout() -> None:
    filled = store()
    history = filled.history("things")
    assert await history.wait(0, 0) is None
    filled.create(key("a"), body("a"))
    assert await history.wait(0, 0) == 0
    waiting = asyncio.ensure_future(history.wait(1, 60))
    await asyncio.sleep(0)
    filled.wake_all()
    assert await waiting == 1


async def test_pinned_watchers_wake_for_their_value() -> None:
    filled = store()
    history = filled.history("things")
    waits = {
        pin: asyncio.ensure_future(history.wait(0, 60, pin))
        for pin in (("metadata.name", "a"), ("metadata.name", "b"), ("node", "n1"), ("node", "n2"))
    }
    await asyncio.sleep(0)
    filled.create(key("a"), body("a", node="n2"))
    assert {pin: await waits.pop(pin) for pin in (("metadata.name", "a"), ("node", "n2"))} == {
        ("metadata.name", "a"): 0,
        ("node", "n2"): 0,
    }
    assert not any(wait.done() for wait in waits.values())
    b = filled.create(key("b"), body("b", node="n1"))
    assert [await wait for wait in waits.values()] == [1, 1]
    leaving = asyncio.ensure_future(history.wait(2, 60, ("node", "n1")))
    await asyncio.sleep(0)
    filled.replace(b, body("b", node="n2"))
    assert await leaving == 2


async def test_change_at_timeout_is_kept() -> None:
    filled = store()
    history = filled.history("things")
    waiting = asyncio.ensure_future(history.wait(0, 0, ("metadata.name", "a")))
    await asyncio.sleep(0)
    asyncio.get_running_loop().call_soon(filled.create, key("a"), body("a"))
    assert await waiting in (0, None)
    assert history.end == 1


@settings(max_examples=25, deadline=None)
@given(steps=st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(["put", "delete"])), max_size=15))
def test_a_restart_finds_exactly_what_was_there(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, str]]
) -> None:
    path: Path = tmp_path_factory.mktemp("store") / "state.db"
    filled = ObjectStore(ObjectDatabase(path), 10)
    for number, (name, what) in enumerate(steps):
        there = filled.get(key(name))
        if what == "put" and there is None:
            filled.create(key(name), body(name, number=number))
        elif what == "put" and there is not None:
            filled.replace(there, body(name, number=number))
        elif there is not None:
            filled.delete(there)
    before, revision = filled.objects("things"), filled.revision
    filled.close()
    again = ObjectStore(ObjectDatabase(path), 10)
    assert again.objects("things") == before
    assert again.revision == revision
    with pytest.raises(TooOldError):
        again.history("things").position_after(revision - 1)
    again.close()
