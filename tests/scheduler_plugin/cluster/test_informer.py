"""An informer follows the API through lost events, cut watches, expired versions and unreadable objects."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field

import pytest

from protocol.messages import ObjectName
from scheduler_plugin.cluster.api import ApiCall, ApiError, JsonObject
from scheduler_plugin.cluster.informer import Change, Informer, Kind
from tests.scheduler_plugin.fake_clock import FakeClock, settle
from tests.scheduler_plugin.fake_cluster import NODES, FakeCluster, Fault, to
from tests.scheduler_plugin.objects import node


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

    def changed(self, change: Change[str]) -> None:
        self.told.append((change.name.name, change.before, change.after))

    def watch_heard(self, kind: str) -> None:
        """Not part of the story."""

    def watch_listed(self, kind: str, count: int) -> None:
        self.told.append(f"listed {count}")

    def watch_failed(self, kind: str, error: ApiError) -> None:
        self.told.append(str(error))

    def watch_missing(self, kind: str) -> None:
        self.told.append("missing")

    def object_unreadable(self, kind: str, name: ObjectName, reason: str) -> None:
        self.told.append(f"{name.name} unreadable: {reason}")

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
        self.queries.append(dict(call.query))
        if "continue" in call.query:
            return {"metadata": {"resourceVersion": "9"}, "items": [node("b", "2")]}
        return {"metadata": {"resourceVersion": "9", "continue": "more"}, "items": [node("a", "1"), "no object"]}

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
        (b"{", "watch of nodes: Input data was truncated"),
        (b'{"type": "ERROR", "object": {"code": 500, "message": "broken"}}', "500: broken"),
        (b'{"type": "ERROR", "object": {}}', "500: watch failed"),
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
