"""An informer follows the API through lost events, cut watches, expired versions and unreadable objects."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field

import pytest

from protocol.kubernetes.objects import JsonObject
from protocol.kubernetes.pages import Page, Unreadable, read_page
from protocol.messages import ObjectName
from scheduler_plugin.cluster import informer as informer_module
from scheduler_plugin.cluster.api import ApiCall, ApiError, PageTooLargeError
from scheduler_plugin.cluster.informer import Change, Informer, Kind
from tests.fake_clock import FakeClock, settle
from tests.scheduler_plugin.fake_cluster import NODES, FakeCluster, Fault, to
from tests.scheduler_plugin.objects import Obj, node


def cpu_of(obj: JsonObject) -> str:
    """The fact of these tests: what a node says of its CPU."""
    status = obj["status"]
    assert isinstance(status, dict)
    cpu = str(status["allocatable"]["cpu"])
    if cpu == "bad":
        raise ValueError("status.allocatable.cpu: expected a quantity")
    return cpu


@dataclass
class Story:
    """What an informer did, in order: changes, reports and complete lists."""

    told: list[object] = field(default_factory=list)
    failed: asyncio.Event = field(default_factory=asyncio.Event)

    def changed(self, change: Change[str]) -> None:
        self.told.append((change.name.name, change.before, change.after))

    def watch_heard(self, kind: str) -> None:
        """Not part of the story."""

    def watch_listed(self, kind: str, count: int) -> None:
        self.told.append(f"listed {count}")

    def watch_failed(self, kind: str, error: ApiError) -> None:
        self.told.append(str(error))
        self.failed.set()

    def watch_missing(self, kind: str) -> None:
        self.told.append("missing")

    def watch_restored(self, kind: str) -> None:
        self.told.append("restored")

    def object_unreadable(self, kind: str, found: Unreadable) -> None:
        self.told.append(f"{found.name.name} unreadable: {found.reason}")

    def unreadable_objects(self, kind: str, count: int) -> None:
        self.told.append(f"{count} unreadable")

    def take(self) -> list[object]:
        told, self.told = self.told, []
        return told


@asynccontextmanager
async def informed(
    cluster: FakeCluster, clock: FakeClock, *, is_optional: bool = False
) -> AsyncIterator[tuple[Informer[str], Story]]:
    story = Story()
    informer = Informer(Kind("nodes", NODES, cpu_of, is_optional), story.changed, story)
    task = asyncio.create_task(informer.run(cluster, clock, lambda: story.told.append("synced")))
    await settle()
    try:
        yield informer, story
        assert not task.done()
    finally:
        task.cancel()
        await asyncio.wait([task])


@pytest.fixture
def cluster() -> FakeCluster:
    cluster = FakeCluster()
    cluster.put(NODES, node("a", "1"))
    return cluster


async def test_lists_then_follows_every_change(cluster: FakeCluster) -> None:
    async with informed(cluster, FakeClock()) as (informer, story):
        cluster.put(NODES, node("b", "2"))
        cluster.put(NODES, node("a", "3"))
        cluster.remove(NODES, "", "b")
        await settle()
        assert story.take() == [
            ("a", None, "1"),
            "listed 1",
            "synced",
            ("b", None, "2"),
            ("a", "1", "3"),
            ("b", "2", None),
        ]
        assert informer.facts == {ObjectName("", "a"): "3"}


async def test_an_event_that_changes_no_fact_is_not_told(cluster: FakeCluster) -> None:
    async with informed(cluster, FakeClock()) as (_, story):
        story.take()
        cluster.put(NODES, node("a", "1") | {"other": "thing"})
        await settle()
        assert story.take() == []


async def test_a_cut_watch_resumes_where_it_was(cluster: FakeCluster) -> None:
    clock = FakeClock()
    async with informed(cluster, clock) as (_, story):
        story.take()
        cluster.cut_watches()
        await settle()
        cluster.put(NODES, node("b", "2"))
        await clock.advance(1)
        assert story.take() == ["the watch was cut", ("b", None, "2")]
        assert len(cluster.made("GET", NODES)) == 1


async def test_an_expired_version_is_listed_again_and_the_difference_told(cluster: FakeCluster) -> None:
    clock = FakeClock()
    cluster.put(NODES, node("gone", "5"))
    async with informed(cluster, clock) as (_, story):
        story.take()
        cluster.cut_watches()
        await settle()
        cluster.remove(NODES, "", "gone")
        cluster.put(NODES, node("a", "7"))
        cluster.put(NODES, node("new", "2"))
        cluster.forget_history()
        cluster.put(NODES, node("b", "2"))
        await clock.advance(5)
        told = story.take()
        assert told[:2] == ["the watch was cut", "410: too old"]
        assert set(told[2:-2]) == {("a", "1", "7"), ("new", None, "2"), ("b", None, "2"), ("gone", "5", None)}
        assert told[-2:] == ["listed 3", "synced"]


async def test_an_unreadable_object_keeps_what_was_known_and_stops_nothing(cluster: FakeCluster) -> None:
    async with informed(cluster, FakeClock()) as (informer, story):
        story.take()
        cluster.put(NODES, node("a", "bad"))
        cluster.put(NODES, node("b", "2"))
        await settle()
        assert story.take() == [
            "a unreadable: status.allocatable.cpu: expected a quantity",
            "1 unreadable",
            ("b", None, "2"),
        ]
        assert informer.facts == {ObjectName("", "a"): "1", ObjectName("", "b"): "2"}


async def test_failures_in_a_row_wait_longer_and_longer(cluster: FakeCluster) -> None:
    cluster.faults.append(Fault(to("GET", NODES), refuse=403, times=6))
    clock = FakeClock()
    async with informed(cluster, clock) as (_, story):
        waits = []
        for _ in range(6):
            seen, began = len(cluster.calls), clock.now()
            while len(cluster.calls) == seen:
                await clock.advance(0.05)
            waits.append(round(clock.now() - began, 2))
        assert waits == pytest.approx([0.15, 0.3, 0.6, 1.2, 2.4, 3.75], abs=0.06)
        assert story.take()[-2:] == ["listed 1", "synced"]


class Pages:
    """An API whose lists come in pages and whose watches say what a test wants."""

    def __init__(self, *lines: bytes) -> None:
        self.queries: list[dict[str, str]] = []
        self.lines = lines

    async def call(self, call: ApiCall) -> JsonObject:
        raise AssertionError(call)

    async def page(self, call: ApiCall) -> Page:
        self.queries.append(dict(call.query))
        if "continue" in call.query:
            return Page("9", "", [node("b", "2")], [])
        return Page("9", "more", [node("a", "1")], [])

    def stream(self, call: ApiCall) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
        self.queries.append(dict(call.query))
        return self._stream()

    @asynccontextmanager
    async def _stream(self) -> AsyncIterator[AsyncIterator[bytes]]:
        yield self._say()

    async def _say(self) -> AsyncIterator[bytes]:
        for line in self.lines:
            yield line


async def story_of(api: Pages, clock: FakeClock, passing: float) -> list[object]:
    story = Story()
    informer = Informer(Kind("nodes", NODES, cpu_of), story.changed, story)
    task = asyncio.create_task(informer.run(api, clock, lambda: None))
    await clock.advance(passing)
    task.cancel()
    await asyncio.wait([task])
    return story.told


async def test_lists_are_read_page_by_page() -> None:
    api = Pages()
    told = await story_of(api, FakeClock(), 0)
    assert told[:3] == [("a", None, "1"), ("b", None, "2"), "listed 2"]
    assert api.queries[:2] == [{"limit": "500"}, {"limit": "500", "continue": "more"}]


async def test_a_bookmark_moves_the_version_and_a_server_that_hangs_up_at_once_is_not_stormed() -> None:
    api = Pages(b'{"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": "12"}}}')
    told = await story_of(api, FakeClock(), 0.5)
    assert [query["resourceVersion"] for query in api.queries[2:]] == ["9", "12", "12", "12"]
    assert told[3:] == ["the server ended the watch of nodes at once"] * 4


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b"{", "watch of nodes: document: expected a JSON object or array that is closed"),
        (b"[]", "watch of nodes: document: expected an object"),
        (b'{"type": "ERROR", "object": {"code": 500, "message": "broken"}}', "500: broken"),
        (b'{"type": "ERROR", "object": {}}', "500: unavailable"),
    ],
)
async def test_what_a_watch_may_not_say_is_reported_and_tried_again(line: bytes, said: str) -> None:
    told = await story_of(Pages(line), FakeClock(), 0)
    assert told[3:] == [said]


async def test_what_was_read_on_its_own_is_not_replaced_by_older_news(cluster: FakeCluster) -> None:
    clock = FakeClock()
    async with informed(cluster, clock) as (informer, story):
        story.take()
        old = cluster.put(NODES, node("a", "2"))
        new = cluster.put(NODES, node("a", "3"))
        informer.learn(new)
        await settle()
        assert informer.learn(old) == "2", "the caller gets what it read"
        assert story.take() == [("a", "1", "3")]


async def test_a_list_does_not_remove_what_is_younger_than_itself(cluster: FakeCluster) -> None:
    clock, held = FakeClock(), asyncio.Event()
    async with informed(cluster, clock) as (informer, story):
        cluster.cut_watches()
        await settle()
        cluster.put(NODES, node("b", "2"))
        cluster.remove(NODES, "", "b")
        cluster.forget_history()
        cluster.faults.append(Fault(lambda call: call.path == NODES, hold=held, is_stale=True))
        await clock.advance(2)
        story.take()
        informer.learn(cluster.put(NODES, node("young", "4")))
        held.set()
        await settle()
        assert story.take() == [("young", None, "4"), "listed 1", "synced"]


async def test_a_deletion_does_not_remove_a_younger_object_of_the_same_name(cluster: FakeCluster) -> None:
    async with informed(cluster, FakeClock()) as (informer, story):
        story.take()
        cluster.remove(NODES, "", "a")
        informer.learn(cluster.put(NODES, node("a", "5")))
        await settle()
        assert story.take() == [("a", "1", "5")]


async def test_a_kind_that_the_cluster_lacks_is_empty_and_looked_for_once_a_minute(cluster: FakeCluster) -> None:
    clock = FakeClock()
    cluster.faults.append(Fault(to("GET", NODES), refuse=404, times=2))
    async with informed(cluster, clock, is_optional=True) as (informer, story):
        assert (story.take(), informer.is_missing) == (["missing", "synced"], True)
        await clock.advance(119)
        assert (story.take(), len(cluster.made("GET", NODES))) == ([], 2)
        await clock.advance(1)
        assert (story.take(), informer.is_missing) == ([("a", None, "1"), "listed 1", "synced"], False)


async def test_a_kind_that_is_taken_away_is_listed_again_and_then_missing(cluster: FakeCluster) -> None:
    clock = FakeClock()
    async with informed(cluster, clock, is_optional=True) as (informer, story):
        story.take()
        cluster.cut_watches()
        await settle()
        cluster.put(NODES, node("a", "2"))
        cluster.forget_history()
        cluster.faults.append(Fault(to("GET", NODES), refuse=404))
        await clock.advance(5)
        assert story.take() == ["the watch was cut", "410: too old", ("a", "1", None), "missing", "synced"]
        assert informer.facts == {}


async def test_a_kind_that_must_be_there_is_waited_for(cluster: FakeCluster) -> None:
    cluster.faults.append(Fault(to("GET", NODES), refuse=404))
    clock = FakeClock()
    async with informed(cluster, clock) as (_, story):
        await clock.advance(1)
        assert story.take() == ["404: refused by a fault", ("a", None, "1"), "listed 1", "synced"]


# Objects that cannot be read ------------------------------------------------------------------------------------------


def at_most(obj: JsonObject, reason: str) -> str:
    return f"at most: {reason.partition(':')[0]}"


def deep(name: str, version: int = 7) -> bytes:
    """A node whose JSON is nested a thousand times deeper than any decoder follows."""
    return (
        b'{"metadata":{"name":"%s","uid":"u","resourceVersion":"%d"},"spec":%s1%s,"status":{"allocatable":{"cpu":"1"}}}'
    ) % (name.encode(), version, b'{"a":' * 100_000, b"}" * 100_000)


class Bodies(Pages):
    """An API that says JSON text."""

    def __init__(self, body: bytes, *lines: bytes) -> None:
        super().__init__(*lines)
        self.body = body

    async def page(self, call: ApiCall) -> Page:
        self.queries.append(dict(call.query))
        return read_page(self.body)


async def told_of(api: Pages, *, knows_most: bool = True) -> tuple[Informer[str], list[object]]:
    story = Story()
    kind = Kind("nodes", NODES, cpu_of, at_most=at_most if knows_most else None)
    informer, clock = Informer(kind, story.changed, story), FakeClock()
    task = asyncio.create_task(informer.run(api, clock, lambda: None))
    async with asyncio.timeout(20):
        await story.failed.wait()  # a long line is read in a thread
    task.cancel()
    await asyncio.wait([task])
    return informer, [each for each in story.told if "the server ended" not in str(each)]


async def test_one_object_nested_too_deeply_spoils_no_other_of_its_page() -> None:
    good = json.dumps(node("b", "2")).encode()
    body = b'{"metadata":{"resourceVersion":"9"},"items":[%s,%s]}' % (deep("a"), good)
    informer, told = await told_of(Bodies(body))
    assert told == [
        ("b", None, "2"),
        "a unreadable: document: expected fewer levels of nesting",
        "1 unreadable",
        ("a", None, "at most: document"),
        "listed 2",
    ]
    assert informer.unreadable[ObjectName("", "a")].uid == "u"


async def test_one_object_nested_too_deeply_does_not_end_a_watch() -> None:
    empty = b'{"metadata":{"resourceVersion":"1"},"items":[]}'
    lines = (b'{"type":"ADDED","object":%s}' % deep("a"), b'{"type":"DELETED","object":%s}' % deep("a", 8))
    informer, told = await told_of(Bodies(empty, *lines))
    assert told == [
        "listed 0",
        "a unreadable: document: expected fewer levels of nesting",
        "1 unreadable",
        ("a", None, "at most: document"),
        "0 unreadable",
        ("a", "at most: document", None),
    ]
    assert (informer.unreadable, informer.facts) == ({}, {})


async def test_an_object_is_reported_once_per_version_and_readable_again_when_it_is_mended(
    cluster: FakeCluster,
) -> None:
    clock, story = FakeClock(), Story()
    informer = Informer(Kind("nodes", NODES, cpu_of, at_most=at_most), story.changed, story)
    task = asyncio.create_task(informer.run(cluster, clock, lambda: None))
    await settle()
    story.take()
    cluster.put(NODES, node("a", "bad"))
    await settle()
    cluster.forget_history()
    await clock.advance(5)
    assert [one for one in story.take() if "unreadable" in str(one)] == [
        "a unreadable: status.allocatable.cpu: expected a quantity",
        "1 unreadable",
    ]
    cluster.put(NODES, node("a", "3"))
    await settle()
    assert story.take() == ["0 unreadable", ("a", "at most: status.allocatable.cpu", "3")]
    task.cancel()
    await asyncio.wait([task])


async def test_an_unreadable_object_that_is_gone_from_the_list_is_forgotten(cluster: FakeCluster) -> None:
    clock = FakeClock()
    cluster.put(NODES, node("b", "bad"))
    async with informed(cluster, clock) as (informer, story):
        assert list(informer.unreadable) == [ObjectName("", "b")]
        cluster.cut_watches()
        await settle()
        cluster.remove(NODES, "", "b")
        cluster.forget_history()
        story.take()
        await clock.advance(5)
        assert story.take() == ["410: too old", "0 unreadable", "listed 1", "synced"]
        assert informer.unreadable == {}


async def test_a_line_that_is_no_event_is_not_met_again_because_everything_is_listed_anew() -> None:
    api = Pages(b"no event")
    await story_of(api, FakeClock(), 0.3)
    assert [query for query in api.queries if "watch" not in query][2:4] == [
        {"limit": "500"},
        {"limit": "500", "continue": "more"},
    ]


class LargeObjects(Pages):
    """An API whose pages are read only where they hold few objects."""

    async def page(self, call: ApiCall) -> Page:
        self.queries.append(dict(call.query))
        if int(call.query["limit"]) > self.most:
            raise PageTooLargeError("too large")
        return Page("9", "", [node("a", "1")], [])

    most = 10


async def test_where_objects_are_large_fewer_are_asked_for_at_a_time() -> None:
    api = LargeObjects()
    told = await story_of(api, FakeClock(), 0)
    assert [query["limit"] for query in api.queries if "watch" not in query] == ["500", "125", "31", "7"]
    assert told[:2] == [("a", None, "1"), "listed 1"]


async def test_an_object_too_large_to_be_read_alone_is_a_failure_that_is_reported() -> None:
    api = LargeObjects()
    api.most = 0
    assert (await story_of(api, FakeClock(), 0))[0] == "too large"


# What is gone stays gone, unless the store was restored -------------------------------------------------------------


def named(name: str, cpu: str, uid: str) -> Obj:
    obj = node(name, cpu)
    obj["metadata"]["uid"] = uid
    return obj


async def test_an_answer_about_a_deleted_object_does_not_bring_it_back(cluster: FakeCluster) -> None:
    async with informed(cluster, FakeClock()) as (informer, story):
        answer = cluster.put(NODES, named("b", "2", "u-1"))
        cluster.remove(NODES, "", "b")
        await settle()
        story.take()
        informer.learn(answer)
        assert (story.take(), list(informer.facts)) == ([], [ObjectName("", "a")])
        cluster.put(NODES, named("b", "3", "u-2"))
        await settle()
        assert story.take() == [("b", None, "3")], "another object of that name is news"


async def test_an_answer_about_an_object_that_a_list_no_longer_has_does_not_bring_it_back(cluster: FakeCluster) -> None:
    clock = FakeClock()
    answer = cluster.put(NODES, named("b", "2", "u-1"))
    async with informed(cluster, clock) as (informer, story):
        cluster.remove(NODES, "", "b")
        cluster.forget_history()
        await clock.advance(10)
        story.take()
        informer.learn(answer)
        assert (story.take(), list(informer.facts)) == ([], [ObjectName("", "a")])


async def test_of_the_deleted_only_the_last_are_remembered(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(informer_module, "REMEMBERED_GONE", 1)
    async with informed(cluster, FakeClock()) as (informer, _):
        answers = [cluster.put(NODES, named(name, "2", f"u-{name}")) for name in ("b", "c")]
        for name in ("b", "c"):
            cluster.remove(NODES, "", name)
        await settle()
        for answer in answers:
            informer.learn(answer)
        assert list(informer.facts) == [ObjectName("", "a"), ObjectName("", "b")]


async def test_a_store_that_was_restored_is_believed_without_a_restart(cluster: FakeCluster) -> None:
    clock = FakeClock()
    cluster.put(NODES, named("b", "2", "u-b"))
    kept = cluster.backup()
    async with informed(cluster, clock) as (informer, story):
        cluster.put(NODES, node("a", "7"))
        cluster.remove(NODES, "", "b")
        await settle()
        story.take()
        cluster.restore(kept)
        await clock.advance(10)
        assert informer.facts == {ObjectName("", "a"): "1", ObjectName("", "b"): "2"}
        assert "restored" in story.take()
        cluster.put(NODES, node("a", "8"))
        await settle()
        assert story.take() == [("a", "1", "8")], "versions count from where they are now"


async def test_news_that_is_older_than_its_watch_means_that_the_store_was_restored(cluster: FakeCluster) -> None:
    clock = FakeClock()
    async with informed(cluster, clock) as (informer, story):
        for cpu in ("2", "3"):
            cluster.put(NODES, node("a", cpu))
        await settle()
        story.take()
        events = cluster.collections[NODES].events
        events.clear()
        cluster.revision = 1
        cluster.put(NODES, node("a", "4"))
        events[0] = (99, *events[0][1:])  # a watch that did not end, from before the store was restored
        await settle()
        events.clear()
        await clock.advance(10)
        assert "restored" in story.take()
        assert informer.facts == {ObjectName("", "a"): "4"}


async def test_after_many_failures_everything_is_listed_again(cluster: FakeCluster) -> None:
    clock = FakeClock()
    async with informed(cluster, clock) as (_, story):
        cluster.go_away()
        for _ in range(2 * informer_module.LIST_AFTER):
            await clock.advance(10)
        story.take()
        cluster.come_back()
        await clock.advance(10)
        assert story.take()[-2:] == ["listed 1", "synced"]
