"""An unreadable object is reported, counts at its maximum, and affects no other."""

from __future__ import annotations

import asyncio
import json
from concurrent.futures import Future, ThreadPoolExecutor

from protocol.kubernetes import resources
from protocol.kubernetes.api import ApiCall
from protocol.kubernetes.objects import JsonObject
from protocol.kubernetes.pages import Page, read_page
from protocol.messages import ObjectName
from protocol.runtime.kubernetes.watches.informer import FactInformer
from protocol.runtime.kubernetes.watches.kinds import Kind
from tests.fake_clock import FakeClock, settle
from tests.nesting import DEEP
from tests.protocol.runtime.kubernetes.informer.informed import Pages, Story, cpu_of, informed
from tests.scheduler_plugin.fake_cluster import NODES, FakeCluster
from tests.scheduler_plugin.objects import node


def at_most(obj: JsonObject, reason: str) -> str:
    return f"at most: {reason.partition(':')[0]}"


def deep(name: str, version: int = 7) -> bytes:
    """A node whose JSON is nested deeper than any decoder follows."""
    return (
        b'{"metadata":{"name":"%s","uid":"u","resourceVersion":"%d"},"spec":%s,"status":{"allocatable":{"cpu":"1"}}}'
    ) % (name.encode(), version, DEEP)


class Bodies(Pages):
    """An API that says JSON text."""

    def __init__(self, body: bytes, *lines: bytes) -> None:
        super().__init__(*lines)
        self.body = body

    async def page(self, call: ApiCall) -> Page:
        self.queries.append(dict(call.query))
        return read_page(self.body)


async def told_of(api: Pages) -> tuple[FactInformer[str], list[object]]:
    story = Story()
    kind = Kind(resources.NODES, cpu_of, at_most=at_most)
    informer, clock = FactInformer(kind, story.changed, story), FakeClock()
    task = asyncio.create_task(informer.run(api, clock, lambda: None))
    async with asyncio.timeout(20):
        await story.failed.wait()  # a long line is read in a thread
    task.cancel()
    await asyncio.wait([task])
    return informer, [each for each in story.told if "the server ended" not in str(each)]


async def test_unreadable_object_keeps_last_state(cluster: FakeCluster) -> None:
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


async def test_deep_object_spoils_only_itself() -> None:
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


async def test_deep_object_does_not_end_watch() -> None:
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


async def test_unreadable_version_is_reported() -> None:
    """An update whose version cannot be read either is news, and so is the next readable one."""
    before, after = (
        json.dumps(node("a", cpu) | {"metadata": {"name": "a", "uid": "u", "resourceVersion": version}}).encode()
        for cpu, version in (("1", "5"), ("2", "11"))
    )
    body = b'{"metadata":{"resourceVersion":"9"},"items":[%s]}' % before
    unversioned = b'{"metadata":{"name":"a","uid":"u","resourceVersion":7},"spec":%s}' % DEEP
    objects = (unversioned, unversioned, after)
    _, told = await told_of(Bodies(body, *(b'{"type":"MODIFIED","object":%s}' % obj for obj in objects)))
    assert told == [
        ("a", None, "1"),
        "listed 1",
        "a unreadable: document: expected fewer levels of nesting",
        "1 unreadable",
        ("a", "1", "at most: document"),
        "0 unreadable",
        ("a", "at most: document", "2"),
    ]


async def test_lines_wait_for_long_line_before_them() -> None:
    """A long line is parsed in a thread, which must not change the order of events."""
    empty = b'{"metadata":{"resourceVersion":"1"},"items":[]}'
    after = {"metadata": {"name": "b", "resourceVersion": "8"}, "status": {"allocatable": {"cpu": "2"}}}
    lines = (b'{"type":"ADDED","object":%s}' % deep("a"), json.dumps({"type": "ADDED", "object": after}).encode())
    _, told = await told_of(Bodies(empty, *lines))
    assert told == [
        "listed 0",
        "a unreadable: document: expected fewer levels of nesting",
        "1 unreadable",
        ("a", None, "at most: document"),
        ("b", None, "2"),
    ]


class Stuck(ThreadPoolExecutor):
    """Threads that never come to an end with their work."""

    def submit(self, *_: object, **__: object) -> Future[object]:  # type: ignore[override]
        return Future()


async def test_list_replaces_line_that_is_still_being_read() -> None:
    story, clock = Story(), FakeClock()
    kind = Kind(resources.NODES, cpu_of, at_most=at_most)
    api = Bodies(b'{"metadata":{"resourceVersion":"1"},"items":[]}', b'{"type":"ADDED","object":%s}' % deep("a"))
    informer = FactInformer(kind, story.changed, story)
    asyncio.get_running_loop().set_default_executor(Stuck())
    task = asyncio.create_task(informer.run(api, clock, lambda: None))
    await settle()
    assert story.take() == ["listed 0"]
    api.body = b'{"metadata":{"resourceVersion":"9"},"items":[%s]}' % deep("a")
    informer.read_again()
    await settle()
    assert story.take() == [
        "a unreadable: document: expected fewer levels of nesting",
        "1 unreadable",
        ("a", None, "at most: document"),
        "listed 1",
    ]
    task.cancel()
    await asyncio.wait([task])


async def test_unreadable_object_is_reported_per_version(
    cluster: FakeCluster,
) -> None:
    clock, story = FakeClock(), Story()
    informer = FactInformer(Kind(resources.NODES, cpu_of, at_most=at_most), story.changed, story)
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


async def test_unlisted_unreadable_object_is_forgotten(cluster: FakeCluster) -> None:
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
