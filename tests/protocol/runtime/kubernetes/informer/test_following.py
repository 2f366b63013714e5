"""An informer follows the API through changes, lost events, cut watches and expired versions."""

from __future__ import annotations

import pytest

from protocol.messages import ObjectName
from protocol.runtime.kubernetes.watches import informer as informer_module
from protocol.runtime.kubernetes.watches.informer import PAGE
from protocol.units import Seconds
from tests.fake_clock import FakeClock, settle
from tests.protocol.runtime.kubernetes.informer.informed import informed
from tests.scheduler_plugin.fake_cluster import NODES, FakeCluster, Fault, to
from tests.scheduler_plugin.objects import node


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


async def test_no_op_event_is_not_published(cluster: FakeCluster) -> None:
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
        assert [call.query["limit"] for call in cluster.made("GET", NODES)] == [str(PAGE), "1"]


async def test_expired_version_relists_difference(cluster: FakeCluster) -> None:
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


async def test_retry_after_is_honoured_within_bound(cluster: FakeCluster) -> None:
    clock = FakeClock(jitter=0.0)
    for asked in (2.0, 600.0):
        cluster.faults = [Fault(to("GET", NODES), refuse=429, retry_after=Seconds(asked))]
        async with informed(cluster, clock) as (_, story):
            waited = 0
            while "synced" not in story.told:
                await clock.advance(1.0)
                waited += 1
            assert min(asked, 10.0) <= waited <= min(asked, 10.0) + 1.0


async def test_missing_kind_is_checked_every_minute(cluster: FakeCluster) -> None:
    clock = FakeClock()
    cluster.faults.append(Fault(to("GET", NODES), refuse=404, times=2))
    async with informed(cluster, clock, is_optional=True) as (informer, story):
        assert (story.take(), informer.is_missing) == (["missing", "synced"], True)
        await clock.advance(119)
        assert (story.take(), len(cluster.made("GET", NODES))) == ([], 2)
        await clock.advance(1)
        assert (story.take(), informer.is_missing) == ([("a", None, "1"), "listed 1", "synced"], False)


async def test_removed_kind_becomes_missing(cluster: FakeCluster) -> None:
    clock = FakeClock()
    async with informed(cluster, clock, is_optional=True) as (informer, story):
        story.take()
        cluster.cut_watches()
        await settle()
        cluster.faults.append(Fault(to("GET", NODES), refuse=404, times=2))
        await clock.advance(5)
        assert story.take() == ["the watch was cut", "404: refused by a fault", ("a", "1", None), "missing", "synced"]
        assert informer.facts == {}


async def test_required_kind_is_awaited(cluster: FakeCluster) -> None:
    cluster.faults.append(Fault(to("GET", NODES), refuse=404))
    clock = FakeClock()
    async with informed(cluster, clock) as (_, story):
        await clock.advance(1)
        assert story.take() == ["404: refused by a fault", ("a", None, "1"), "listed 1", "synced"]


async def test_fact_is_published_once_per_version(cluster: FakeCluster) -> None:
    async with informed(cluster, FakeClock()) as (informer, _):
        name = ObjectName("", "a")
        assert [informer.at_version(name, version) for version in ("1", "2", "", "x")] == ["1", None, None, None]
        cluster.put(NODES, node("a", "5"))
        await settle()
        assert [informer.at_version(name, version) for version in ("1", "2")] == [None, "5"]
        cluster.put(NODES, node("a", "bad"))
        await settle()
        assert [informer.at_version(name, version) for version in ("2", "3")] == [None, None]
        assert informer.at_version(ObjectName("", "b"), "0") is None
