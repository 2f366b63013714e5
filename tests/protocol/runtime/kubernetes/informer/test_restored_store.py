"""The store is replaced by an older one, with or without its revision raised: everything is read again."""

from __future__ import annotations

import random
from itertools import count

import pytest

from protocol.kubernetes.api import ApiCall, ApiUnknownError
from protocol.kubernetes.objects import JsonObject
from protocol.kubernetes.pages import Page
from protocol.messages import ObjectName
from tests.examples import examples
from tests.fake_clock import FakeClock, settle
from tests.protocol.runtime.kubernetes.informer.informed import informed
from tests.scheduler_plugin.fake_cluster import NODES, FakeCluster, Fault, Obj, to
from tests.scheduler_plugin.objects import node


def named(name: str, cpu: str, uid: str) -> Obj:
    obj = node(name, cpu)
    obj["metadata"]["uid"] = uid
    return obj


def cpus(cluster: FakeCluster) -> dict[ObjectName, str]:
    """CPUs of each node."""
    found = cluster.collections[NODES].objects.items()
    return {ObjectName("", name): obj["status"]["allocatable"]["cpu"] for (_, name), obj in found}


@pytest.mark.parametrize("is_bumped", [False, True])
async def test_restored_objects_replace_newer_ones(cluster: FakeCluster, is_bumped: bool) -> None:
    """One object was deleted after the snapshot, one changed, one created: the snapshot alone counts."""
    clock = FakeClock()
    cluster.put(NODES, named("b", "2", "u-b"))
    kept = cluster.backup()
    async with informed(cluster, clock) as (informer, story):
        cluster.put(NODES, node("a", "7"))
        cluster.remove(NODES, "", "b")
        cluster.put(NODES, named("c", "3", "u-c"))
        await settle()
        story.take()
        cluster.restore(kept, is_bumped=is_bumped)
        await clock.advance(10)
        assert informer.facts == cpus(cluster) == {ObjectName("", "a"): "1", ObjectName("", "b"): "2"}
        assert story.take().count("restored") == 1
        cluster.put(NODES, node("a", "8"))
        await settle()
        assert story.take() == [("a", "1", "8")]


async def test_returned_deleted_object_proves_restore(cluster: FakeCluster) -> None:
    clock = FakeClock()
    cluster.put(NODES, named("b", "2", "u-b"))
    kept = cluster.backup()
    async with informed(cluster, clock) as (informer, story):
        cluster.remove(NODES, "", "b")
        await settle()
        cluster.restore(kept, is_bumped=True)
        await clock.advance(10)
        assert informer.facts == cpus(cluster)
        assert "restored" in story.take()


async def test_restored_store_whose_revision_has_caught_up(cluster: FakeCluster) -> None:
    """Other writers were quick: the restored store is at the revision that was known, with another history."""
    clock = FakeClock()
    kept = cluster.backup()
    async with informed(cluster, clock) as (informer, story):
        cluster.put(NODES, node("a", "7"))
        cluster.put(NODES, named("b", "2", "u-b"))
        await settle()
        story.take()
        cluster.restore(kept)
        for number in range(3):
            cluster.put(NODES, named(f"other-{number}", "1", f"u-{number}"))
        await clock.advance(10)
        assert informer.facts == cpus(cluster)
        assert "restored" in story.take()


async def test_restore_rereads_earlier_objects(cluster: FakeCluster) -> None:
    """A list in pages: the first shows nothing odd, the second an object that was gone."""
    clock = FakeClock()
    cluster.put(NODES, named("b", "2", "u-b"))
    kept = cluster.backup()
    paged = InPages(cluster)
    async with informed(paged, clock) as (informer, _):
        cluster.put(NODES, node("a", "7"))
        cluster.restore(kept, is_bumped=True)
        cluster.put(NODES, node("a", "5"))  # newer than all that was known
        await clock.advance(10)
        cluster.remove(NODES, "", "b")
        await settle()
        cluster.restore(kept, is_bumped=True)
        await clock.advance(10)
        assert informer.facts == cpus(cluster)


class InPages(FakeCluster):
    """A cluster whose lists have one object on a page."""

    def __init__(self, cluster: FakeCluster) -> None:
        super().__init__()
        self.__dict__ |= cluster.__dict__
        self.cluster = cluster

    async def page(self, call: ApiCall) -> Page:
        whole = await self.cluster.page(call)
        at = int(call.query.get("continue", "0"))
        rest = str(at + 1) if at + 1 < len(whole.objects) else ""
        return Page(whole.version, rest, whole.objects[at : at + 1], [])

    def stream(self, call: ApiCall):  # type: ignore[no-untyped-def]  # as the cluster's
        return self.cluster.stream(call)


async def test_read_that_is_older_than_known_is_refused(cluster: FakeCluster) -> None:
    """A write met a conflict after a restore; what is read then is no ground to decide on."""
    clock, name = FakeClock(), ObjectName("", "a")
    kept = cluster.backup()
    async with informed(cluster, clock) as (informer, story):
        cluster.put(NODES, node("a", "7"))
        await settle()
        story.take()
        cluster.revision, cluster.collections = kept.revision, kept.collections  # its watches go on
        with pytest.raises(ApiUnknownError, match="restored"):
            await informer.read(name, read(cluster, "a"))
        await clock.advance(1)
        assert (informer.facts, await informer.read(name, read(cluster, "a"))) == ({name: "1"}, "1")
        assert story.take().count("restored") == 1


async def test_read_of_a_deleted_object_is_refused(cluster: FakeCluster) -> None:
    clock, name = FakeClock(), ObjectName("", "b")
    back = cluster.put(NODES, named("b", "2", "u-b"))
    async with informed(cluster, clock) as (informer, _):
        cluster.remove(NODES, "", "b")
        await settle()
        cluster.put(NODES, back)
        with pytest.raises(ApiUnknownError, match="restored"):
            await informer.read(name, read(cluster, "b"))
        await clock.advance(1)
        assert informer.facts == cpus(cluster)


async def read(cluster: FakeCluster, name: str) -> JsonObject:
    return await cluster.call(ApiCall("GET", f"{NODES}/{name}", 1.0))  # type: ignore[arg-type]  # Seconds


async def test_answer_that_was_overtaken_proves_nothing(cluster: FakeCluster) -> None:
    """A read was asked for before the watch showed something newer: that is no older store."""
    async with informed(cluster, FakeClock()) as (informer, story):
        old = await read(cluster, "a")

        async def late() -> JsonObject:
            cluster.put(NODES, node("a", "7"))
            await settle()
            return old

        assert await informer.read(ObjectName("", "a"), late()) == "1"
        assert informer.facts == {ObjectName("", "a"): "7"}
        assert "restored" not in story.take()


async def test_same_version_with_other_content_is_read(cluster: FakeCluster) -> None:
    """The default of a CRD changes: objects look different and keep their versions; watches start again with 410."""
    clock = FakeClock()
    async with informed(cluster, clock) as (informer, story):
        cluster.get(NODES, "", "a")["status"]["allocatable"]["cpu"] = "8"
        change_definition(cluster)
        await clock.advance(10)
        assert informer.facts == cpus(cluster)
        assert ("a", "1", "8") in story.take()


def change_definition(cluster: FakeCluster) -> None:
    """Change the CRD: the API server then has no earlier version."""
    cluster.revision += 1
    cluster.forget_history()


async def test_kind_restored_after_404_is_listed(cluster: FakeCluster) -> None:
    """The path of a kind was not served for a moment: its objects are the same as before."""
    clock = FakeClock()
    cluster.put(NODES, named("b", "2", "u-b"))
    async with informed(cluster, clock, is_optional=True) as (informer, story):
        cluster.faults.append(Fault(to("GET", NODES), refuse=404, times=2))
        change_definition(cluster)
        await clock.advance(1)
        assert (informer.facts, story.take()[-2:]) == ({}, ["missing", "synced"])
        await clock.advance(60)
        assert informer.facts == cpus(cluster)


@pytest.mark.parametrize("seed", range(examples(20, 300)))
async def test_facts_follow_any_history(seed: int) -> None:
    """Objects come, change and go, watches break, and the store is restored in any of the ways it can be."""
    chance, clock, cluster, numbers = random.Random(seed), FakeClock(), FakeCluster(), count()
    kept = cluster.backup()

    def put() -> None:
        name = f"n{chance.randrange(4)}"
        known = cluster.collections[NODES].objects.get(("", name))
        uid = f"u{next(numbers)}" if known is None else known["metadata"]["uid"]
        cluster.put(NODES, named(name, str(chance.randint(1, 99)), uid))

    def remove() -> None:
        names = [name for _, name in cluster.collections[NODES].objects]
        if names:
            cluster.remove(NODES, "", chance.choice(names))

    def save() -> None:
        nonlocal kept
        kept = cluster.backup()

    def restore() -> None:
        cluster.restore(kept, is_bumped=chance.random() < 0.5)

    doings = (put, put, put, remove, save, restore, cluster.cut_watches, cluster.end_watches, cluster.forget_history)
    async with informed(cluster, clock) as (informer, _):
        for _step in range(60):
            chance.choice(doings)()
            if chance.random() < 0.5:
                await clock.advance(chance.choice((0.0, 0.2, 3.0)))
        change_definition(cluster)
        await clock.advance(60)
        assert informer.facts == cpus(cluster)
