"""Older news replaces nothing: what is gone stays gone, unless the store was restored."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from protocol.kubernetes import resources
from protocol.kubernetes.api import ApiCall
from protocol.kubernetes.objects import JsonObject, name_of, uid_of, version_of
from protocol.messages import ObjectName
from protocol.runtime.kubernetes.watches import fact_cache as known_module
from protocol.runtime.kubernetes.watches.fact_cache import FactCache
from protocol.runtime.kubernetes.watches.kinds import Kind
from tests.fake_clock import FakeClock, settle
from tests.protocol.runtime.kubernetes.informer.informed import Story, cpu_of, informed
from tests.scheduler_plugin.fake_cluster import NODES, FakeCluster, Fault
from tests.scheduler_plugin.objects import Obj, node


def named(name: str, cpu: str, uid: str) -> Obj:
    obj = node(name, cpu)
    obj["metadata"]["uid"] = uid
    return obj


async def test_direct_read_outranks_older_event(cluster: FakeCluster) -> None:
    clock = FakeClock()
    async with informed(cluster, clock) as (informer, story):
        story.take()
        old = cluster.put(NODES, node("a", "2"))
        new = cluster.put(NODES, node("a", "3"))
        informer.learn(new)
        await settle()
        assert informer.learn(old) == "2", "the caller gets what it read"
        assert story.take() == [("a", "1", "3")]


def lists(call: ApiCall) -> bool:
    """True if all nodes are asked for, and not just the store's version."""
    return call.path == NODES and call.query.get("limit") != "1"


async def test_list_keeps_younger_objects(cluster: FakeCluster) -> None:
    clock, held = FakeClock(), asyncio.Event()
    async with informed(cluster, clock) as (informer, story):
        cluster.cut_watches()
        await settle()
        cluster.put(NODES, node("b", "2"))
        cluster.remove(NODES, "", "b")
        cluster.forget_history()
        cluster.faults.append(Fault(lists, hold=held, is_stale=True))
        await clock.advance(2)
        story.take()
        informer.learn(cluster.put(NODES, node("young", "4")))
        held.set()
        await settle()
        assert story.take() == [("young", None, "4"), "listed 1", "synced"]


async def test_stale_deletion_keeps_younger_object(cluster: FakeCluster) -> None:
    async with informed(cluster, FakeClock()) as (informer, story):
        story.take()
        cluster.remove(NODES, "", "a")
        informer.learn(cluster.put(NODES, node("a", "5")))
        await settle()
        assert story.take() == [("a", "1", "5")]


def test_object_version_is_decoded_once() -> None:
    read, story = list[str](), Story()

    def reading(obj: JsonObject) -> str:
        read.append(version_of(obj))
        return cpu_of(obj)

    def found(version: str, cpu: str, uid: str) -> Obj:
        obj = named("a", cpu, uid)
        obj["metadata"]["resourceVersion"] = version
        return obj

    known = FactCache(Kind(resources.NODES, reading), story.changed, story)
    news = [("7", "1", "u-1"), ("7", "1", "u-1"), ("8", "2", "u-1"), ("8", "3", "u-2"), ("", "4", "u-2")]
    assert [known.learn(found(*each)) for each in news] == ["1", "1", "2", "3", "4"]
    assert read == ["7", "8", "8", ""]
    known.reset_versions()
    assert known.learn(found("8", "5", "u-2")) == "5", "the store was restored"
    assert story.take() == [("a", None, "1"), ("a", "1", "2"), ("a", "2", "3"), ("a", "3", "5")]


async def test_known_news_is_not_repeated(cluster: FakeCluster) -> None:
    async with informed(cluster, FakeClock()) as (informer, story):
        story.take()
        told = cluster.put(NODES, node("a", "3"))
        informer.learn_silently(name_of(told), uid_of(told), version_of(told), "3")
        assert informer.facts == {ObjectName("", "a"): "3"}
        informer.learn_silently(name_of(told), uid_of(told), "1", "1")
        await settle()
        assert (story.take(), informer.facts) == ([], {ObjectName("", "a"): "3"})


async def test_late_answer_revives_no_deleted_object(cluster: FakeCluster) -> None:
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


async def test_late_answer_revives_no_unlisted_object(cluster: FakeCluster) -> None:
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
    monkeypatch.setattr(known_module, "REMEMBERED_GONE", 1)
    async with informed(cluster, FakeClock()) as (informer, _):
        answers = [cluster.put(NODES, named(name, "2", f"u-{name}")) for name in ("b", "c")]
        for name in ("b", "c"):
            cluster.remove(NODES, "", name)
        await settle()
        for answer in answers:
            informer.learn(answer)
        assert list(informer.facts) == [ObjectName("", "a"), ObjectName("", "b")]


async def test_restored_store_is_believed_without_restart(cluster: FakeCluster) -> None:
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


async def test_event_older_than_watch_proves_restore(cluster: FakeCluster) -> None:
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


@pytest.mark.parametrize("ends", [FakeCluster.cut_watches, FakeCluster.end_watches])
async def test_restore_is_detected_after_any_outage(cluster: FakeCluster, ends: Callable[[FakeCluster], None]) -> None:
    clock = FakeClock()
    kept = cluster.backup()
    async with informed(cluster, clock) as (informer, story):
        cluster.put(NODES, node("b", "2"))
        await clock.advance(5)
        story.take()
        cluster.restore(kept, ends)
        await clock.advance(0.2)
        assert informer.facts == {ObjectName("", "a"): "1"}
        assert story.take()[-4:] == ["restored", ("b", "2", None), "listed 1", "synced"]
