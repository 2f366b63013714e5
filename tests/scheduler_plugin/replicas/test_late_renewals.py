"""A renewal that is answered after the end of the replica's term begins a new term, with no state left from the old
one.
"""

from __future__ import annotations

import asyncio

from protocol.kubernetes.api import ApiCall
from protocol.kubernetes.objects import JsonObject
from protocol.kubernetes.pages import Page
from tests.fake_clock import FakeClock, settle
from tests.scheduler_plugin.granted import granted
from tests.scheduler_plugin.replicas.pair import TERMS, replicas
from tests.scheduler_plugin.replicas.stopped_process import Way


class Gated(Way):
    """A connection whose Lease writes and lists get responses only while the gates are open."""

    def __init__(self, way: Way) -> None:
        super().__init__(way.cluster, way.clock)
        self.leases, self.lists = asyncio.Event(), asyncio.Event()

    async def call(self, call: ApiCall) -> JsonObject:
        answer = await super().call(call)
        if "/leases" in call.path and call.method != "GET":
            await self.leases.wait()
        return answer

    async def page(self, call: ApiCall) -> Page:
        await self.lists.wait()
        return await super().page(call)


async def test_replica_acts_after_late_renewal() -> None:
    clock = FakeClock(start=-TERMS.duration)
    async with replicas(granted(), clock, count=0) as run:
        way = Gated(Way(run.cluster, clock))
        way.lists.set()
        way.leases.set()
        process = await run.start(way)
        way.lists.clear()
        await clock.advance(TERMS.duration)  # the Lease is won: it writes until 8, and lists
        way.leases.clear()
        await clock.advance(3.0)
        way.leases.set()  # asked at 2: until 10
        way.is_cut = True
        await clock.advance(5.9)
        way.is_cut = False
        way.leases.clear()
        await clock.advance(1.2)  # asked at 9
        way.lists.set()
        await settle()
        assert [each for each in run.running if each.leads] == []
        await clock.advance(0.1)
        way.leases.set()  # until 17
        await clock.advance(1.0)
        assert [each for each in run.running if each.leads] == [process]
        assert process.replica.context.term.signed("replica-1") == "replica-1.2"
