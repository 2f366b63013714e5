"""An informer with a fake API, and the record of its calls."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field

from protocol.kubernetes import resources
from protocol.kubernetes.api import ApiCall, ApiError
from protocol.kubernetes.objects import JsonObject, uid_of
from protocol.kubernetes.pages import Page, Unreadable, read_event
from protocol.runtime.kubernetes.watches.informer import FactInformer
from protocol.runtime.kubernetes.watches.kinds import FactChange, Kind, Watched
from tests.fake_clock import FakeClock, settle
from tests.scheduler_plugin.fake_cluster import FakeCluster
from tests.scheduler_plugin.objects import node


def cpu_of(obj: JsonObject) -> str:
    """The fact of these tests: what a node says of its CPU."""
    status = obj["status"]
    assert isinstance(status, dict)
    cpu = str(status["allocatable"]["cpu"])
    if cpu == "bad":
        raise ValueError("status.allocatable.cpu: expected a quantity")
    return cpu


def watched_cpu(line: bytes) -> Watched[str] | None:
    """The same fact from a line of a watch, where it is a usual one."""
    event = read_event(line)
    if event.type not in ("ADDED", "MODIFIED"):
        return None
    try:
        return Watched(event.name, uid_of(event.object), event.version, cpu_of(event.object))
    except ValueError:
        return None


@dataclass
class Story:
    """Calls of an informer, in order: changes, reports and complete lists."""

    told: list[object] = field(default_factory=list)
    failed: asyncio.Event = field(default_factory=asyncio.Event)

    def changed(self, change: FactChange[str]) -> None:
        self.told.append((change.name.name, change.before, change.after))

    def watch_delivered(self, kind: str) -> None:
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
) -> AsyncIterator[tuple[FactInformer[str], Story]]:
    story = Story()
    kind = Kind(resources.NODES, cpu_of, is_optional, read_line=watched_cpu)
    informer = FactInformer(kind, story.changed, story)
    task = asyncio.create_task(informer.run(cluster, clock, lambda: story.told.append("synced")))
    await settle()
    try:
        yield informer, story
        assert not task.done()
    finally:
        task.cancel()
        await asyncio.wait([task])


class Pages:
    """An API whose lists come in pages and whose watches say what a test wants; its store is at version 12."""

    def __init__(self, *lines: bytes) -> None:
        self.queries: list[dict[str, str]] = []
        self.lines = lines

    async def call(self, call: ApiCall) -> JsonObject:
        raise AssertionError(call)

    async def page(self, call: ApiCall) -> Page:
        if call.query["limit"] == "1":
            return Page("12", "more", [node("a", "1")], [])
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


async def story_of(api: Pages, clock: FakeClock, passing: float, labels: str = "") -> list[object]:
    story = Story()
    informer = FactInformer(Kind(resources.NODES, cpu_of, labels=labels), story.changed, story)
    task = asyncio.create_task(informer.run(api, clock, lambda: None))
    await clock.advance(passing)
    task.cancel()
    await asyncio.wait([task])
    return story.told
