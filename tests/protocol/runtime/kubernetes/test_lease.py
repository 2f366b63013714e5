"""Of several processes one acts: who holds the Lease, for how long, and who comes next."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from protocol.kubernetes.api import ApiCall, ApiRefusedError, ApiUnknownError, KubernetesApi
from protocol.kubernetes.objects import Json, JsonObject, child, integer, text, uid_of, version_of
from protocol.kubernetes.refusals import classify
from protocol.kubernetes.resources import LEASES, MERGE_PATCH
from protocol.messages import ObjectName
from protocol.runtime.kubernetes.lease import Leadership, LeaseTerms, NotLeadingError
from protocol.units import Seconds
from tests.fake_clock import FakeClock
from tests.scheduler_plugin.groups.program.cluster import Connection, EmbeddedCluster

TERMS = LeaseTerms(ObjectName("kube-system", "groups"))


class LosesEverySecondAnswer(Connection):
    """An API that performs every write, and loses every second response."""

    async def call(self, call: ApiCall) -> JsonObject:
        answer = await super().call(call)
        self.lost += call.method != "GET"
        if call.method != "GET" and self.lost % 2 == 0:
            raise ApiUnknownError("the answer was lost")
        return answer

    lost = 0


class CannotRead(Connection):
    """An API that performs writes, but reads nothing once it is ``blind``."""

    async def call(self, call: ApiCall) -> JsonObject:
        if self.blind and call.method == "GET":
            raise ApiUnknownError("no answer")
        return await super().call(call)

    blind = False


class Clocked:
    """Two or three processes that seek one Lease."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.cluster = EmbeddedCluster(self.clock)
        self.tasks: list[asyncio.Task[None]] = []
        self.told: list[tuple[str, bool]] = []

    async def start(self, identity: str, api: KubernetesApi | None = None) -> Leadership:
        """The first one takes the Lease after its duration: it has seen no other."""
        found = Leadership(api or self.cluster.connection(), self.clock, TERMS, identity)
        found.on_change = lambda leads: self.told.append((identity, leads))
        self.tasks.append(asyncio.create_task(found.run()))
        await self.clock.advance(0 if self.tasks[1:] else TERMS.duration)
        return found


@asynccontextmanager
async def processes() -> AsyncIterator[Clocked]:
    clocked = Clocked()
    try:
        yield clocked
    finally:
        for task in clocked.tasks:
            task.cancel()
        await asyncio.wait(clocked.tasks)


async def test_the_first_holds_it_and_keeps_it() -> None:
    async with processes() as run:
        first, second = await run.start("first"), await run.start("second")
        for _ in range(30):
            await run.clock.advance(1.0)
            assert (first.leads, second.leads) == (True, False)
        lease = await run.cluster.get(LEASES, "groups", "kube-system")
        assert (text(lease, "spec", "holderIdentity"), integer(lease, "spec", "leaseTransitions")) == ("first", 0)
        assert run.told == [("first", True)]


async def test_killed_holder_is_succeeded_without_overlap() -> None:
    async with processes() as run:
        way = run.cluster.connection()
        first, second = await run.start("first", way), await run.start("second")
        await run.clock.advance(7.3)
        way.is_cut = True
        killed_at = run.clock.now()
        while not second.leads:
            await run.clock.advance(0.1)
            assert not (first.leads and second.leads)
        assert run.clock.now() - killed_at < 15
        assert run.told == [("first", True), ("first", False), ("second", True)]
        with pytest.raises(NotLeadingError):
            first.allowed(Seconds(1.0))


async def test_one_that_ends_in_order_gives_it_back() -> None:
    async with processes() as run:
        first, second = await run.start("first"), await run.start("second")
        await first.release()
        run.tasks[0].cancel()
        await run.clock.advance(2.0)
        assert (first.leads, second.leads) == (False, True)


async def test_write_timeout_is_lease_bound() -> None:
    async with processes() as run:
        way = run.cluster.connection()
        first = await run.start("first", way)
        assert first.allowed(Seconds(3.0)) == 3.0
        way.is_cut = True
        await run.clock.advance(6.5)
        assert first.allowed(Seconds(3.0)) == pytest.approx(1.5)
        await run.clock.advance(1.5)
        assert not first.leads


async def test_lost_renewal_is_retried_in_time() -> None:
    async with processes() as run:
        way = LosesEverySecondAnswer(run.cluster)
        first, second = await run.start("first", way), await run.start("second")
        for _ in range(40):
            await run.clock.advance(1.0)
            assert (first.leads, second.leads) == (True, False)


async def test_stolen_lease_ends_leadership() -> None:
    async with processes() as run:
        first = await run.start("first")
        await run.cluster.request(
            "PATCH",
            LEASES.path("kube-system", "groups"),
            {"spec": {"holderIdentity": "someone", "leaseDurationSeconds": 60}},
            "application/merge-patch+json",
        )
        await run.clock.advance(2.0)
        assert (first.leads, first.holder) == (False, "someone")


async def test_ending_replica_releases_only_own_lease() -> None:
    async with processes() as run:
        way = CannotRead(run.cluster)
        first = await run.start("first", way)
        way.blind = True
        taken: Json = {"spec": {"holderIdentity": "someone"}}
        await run.cluster.request("PATCH", LEASES.path("kube-system", "groups"), taken, MERGE_PATCH)
        await run.clock.advance(2.0)
        await first.release()
        assert not first.leads
        lease = await run.cluster.get(LEASES, "groups", "kube-system")
        assert text(lease, "spec", "holderIdentity") == "someone"


async def test_a_lease_that_is_deleted_is_made_again() -> None:
    async with processes() as run:
        first = await run.start("first")
        await run.cluster.request("DELETE", LEASES.path("kube-system", "groups"))
        await run.clock.advance(4.0)
        assert first.leads
        assert text(await run.cluster.get(LEASES, "groups", "kube-system"), "spec", "holderIdentity") == "first"


class OneLease:
    """An API with a store of one Lease, which can be restored; ``away`` are the processes that do not reach it."""

    def __init__(self) -> None:
        self.lease: Json | None = None
        self.revision = 0
        self.away: set[str] = set()

    def way_of(self, identity: str) -> KubernetesApi:
        return Way(self, identity)

    def answer(self, call: ApiCall) -> Json:
        if call.method == "POST" or self.lease is None:
            if call.method != "POST" or self.lease is not None:
                raise ApiRefusedError(classify(409 if call.method == "POST" else 404))
            return self._store(call.body or {})
        if call.method == "GET":
            return self.lease
        body = dict(call.body or {})
        if text(body, "metadata", "resourceVersion") != version_of(self.lease):
            raise ApiRefusedError(classify(409))
        return self._store({"spec": {**child(self.lease, "spec"), **child(body, "spec")}})

    def _store(self, body: JsonObject) -> Json:
        self.revision += 1
        uid = f"lease-{self.revision}" if self.lease is None else uid_of(self.lease)
        self.lease = {**body, "metadata": {"resourceVersion": str(self.revision), "uid": uid}}
        return self.lease


class Way(Connection):
    """One process's way to that store."""

    def __init__(self, store: OneLease, identity: str) -> None:
        self.store, self.identity = store, identity

    async def call(self, call: ApiCall) -> JsonObject:
        if self.identity in self.store.away:
            raise ApiUnknownError("no answer")
        return self.store.answer(call)


@pytest.mark.parametrize("holder", ["first", "", None], ids=["the one before", "given back", "none was there"])
async def test_restored_lease_gives_no_second_leader(holder: str | None) -> None:
    async with processes() as run:
        store = OneLease()
        first = await run.start("first", store.way_of("first"))
        second = await run.start("second", store.way_of("second"))
        await run.clock.advance(5.0)
        assert store.lease is not None
        spec = {**child(store.lease, "spec"), "holderIdentity": holder}
        old, revision = None if holder is None else {**store.lease, "spec": spec}, store.revision
        store.away = {"first"}
        await run.clock.advance(14.0)
        store.away = set()
        await run.clock.advance(4.5)
        assert (first.leads, second.leads) == (False, True)
        store.lease, store.revision = old, revision
        for _ in range(200):
            await run.clock.advance(0.1)
            assert not (first.leads and second.leads)
        assert first.leads or second.leads


async def test_new_replica_waits_full_duration() -> None:
    async with processes() as run:
        ready = asyncio.Event()
        first = Leadership(run.cluster.connection(), run.clock, TERMS, "first")
        run.tasks.append(asyncio.create_task(first.run(ready)))
        await run.clock.advance(8.9)
        assert not first.leads
        await run.clock.advance(10.0)
        assert not first.leads, "it has looked, and is not ready to lead"
        ready.set()
        first.poll()
        await run.clock.advance(0.0)
        assert first.leads


async def test_fenced_program_takes_lease_at_once() -> None:
    clock = FakeClock()
    store = OneLease()
    fenced = replace(TERMS, is_fenced=True)
    made = [Leadership(store.way_of(name), clock, fenced, name) for name in ("first", "second", "third")]
    tasks = [asyncio.create_task(each.run()) for each in made[:2]]
    await clock.advance(0)
    assert [each.leads for each in made] == [True, False, False]
    await made[0].release()
    tasks.append(asyncio.create_task(made[2].run()))
    await clock.advance(0)
    assert [each.leads for each in made] == [False, False, True]
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)


def deleted(store: OneLease) -> None:
    store.lease = None


def given_back_long_ago(store: OneLease) -> None:
    store.away = {"first"}
    spec: Json = {"holderIdentity": "", "leaseDurationSeconds": 1}
    store.lease, store.revision = {"metadata": {"resourceVersion": "1", "uid": "lease-1"}, "spec": spec}, 1


def made_anew(store: OneLease) -> None:
    store.away = {"first"}
    store.lease = None
    store.answer(ApiCall("POST", "", Seconds(1.0), body={"spec": {}}))


@pytest.mark.parametrize("becomes", [deleted, given_back_long_ago, made_anew])
@pytest.mark.parametrize("has_followed", [False, True])
async def test_two_never_lead_whatever_becomes_of_the_lease(
    becomes: Callable[[OneLease], None], has_followed: bool
) -> None:
    async with processes() as run:
        store = OneLease()
        first = await run.start("first", store.way_of("first"))
        other = await run.start("other", store.way_of("other")) if has_followed else None
        await run.clock.advance(4.1)
        becomes(store)
        other = other or await run.start("other", store.way_of("other"))
        for _ in range(130):
            assert not (first.leads and other.leads)
            await run.clock.advance(0.1)
        assert first.leads or other.leads


async def test_released_lease_is_taken_at_once() -> None:
    async with processes() as run:
        store = OneLease()
        first = await run.start("first", store.way_of("first"))
        second, third = [await run.start(name, store.way_of(name)) for name in ("second", "third")]
        for giver, taker in ((first, second), (second, third)):
            await run.clock.advance(5.0)
            await giver.release()
            for each in (third, second):
                if each is taker:
                    each.poll()
            await run.clock.advance(0.0)
            assert [each.leads for each in (first, second, third)] == [each is taker for each in (first, second, third)]


async def test_holder_resumes_after_outage() -> None:
    async with processes() as run:
        store = OneLease()
        first = await run.start("first", store.way_of("first"))
        second = await run.start("second", store.way_of("second"))
        await run.clock.advance(5.0)
        store.away = {"first", "second"}
        await run.clock.advance(60.0)
        assert (first.leads, second.leads) == (False, False)
        store.away = set()
        await run.clock.advance(2.0)
        assert first.leads or second.leads


async def test_a_renewal_that_failed_is_repeated_soon() -> None:
    async with processes() as run:
        way = run.cluster.connection()
        first = await run.start("first", way)
        way.is_cut = True
        await run.clock.advance(2.1)
        way.is_cut = False
        await run.clock.advance(0.5)
        assert first.remaining == pytest.approx(7.9)
