"""A Kubernetes API whose permit writes land immediately, late or never, or are refused, changed or not answered.

A write that was sent may land at any time after, past its time-out and past the end of the process that sent it, as
long as the object still has the version that it names.
"""

from __future__ import annotations

import asyncio
from random import Random
from typing import Final
from weakref import WeakSet

from protocol.kubernetes.api import ApiCall, ApiRefusedError, ApiUnknownError
from protocol.kubernetes.objects import JsonObject
from protocol.units import Seconds
from tests.fake_clock import FakeClock
from tests.scheduler_plugin.fake_cluster import Collection, FakeCluster, Obj, refused

KEPT: Final = 60
"""News of each kind that a watch may still resume from."""

MOST_FLIGHTS: Final = 12

FATES: Final = ("done", "slow", "unanswered", "late", "lost", "refused")


class LateApi(FakeCluster):
    """``FakeCluster`` with dice for permits. ``calm``: every write is done at once."""

    def __init__(self, chance: Random, clock: FakeClock) -> None:
        super().__init__()
        self.chance = chance
        self.clock = clock
        self.flights: list[ApiCall] = []
        self.weights = [70, 8, 5, 7, 4, 6]
        self.calm = False
        self.dying: WeakSet[asyncio.Task[None]] = WeakSet()
        """Processes that die: they give no Lease back."""

    def _publish(self, collection: Collection, kind: str, obj: Obj) -> None:
        super()._publish(collection, kind, obj)
        if len(collection.events) > 2 * KEPT:
            collection.compacted = collection.events[-KEPT - 1][0]
            del collection.events[:-KEPT]

    async def call(self, call: ApiCall) -> JsonObject:
        if self.is_away or asyncio.current_task() in self.dying:
            raise ApiUnknownError("the API is away")
        if call.method == "PATCH" and "/virtualmachines/" in call.path and not self.calm:
            return await self._permit(call)
        return self._answer(call)

    async def _permit(self, call: ApiCall) -> JsonObject:
        fate = self.chance.choices(FATES, self.weights)[0]
        if fate == "refused":
            raise refused(self.chance.choice((403, 422, 429)), "refused by the dice")
        if fate == "slow":
            await self.clock.sleep(Seconds(self.chance.choice((0.05, 0.6, 2.5))))
        if fate in ("done", "slow"):
            return self._answer(call)
        if fate == "unanswered":
            self._apply(call)
        elif fate == "late":
            self.flights = [*self.flights[-MOST_FLIGHTS:], call]
        if self.chance.random() < 0.5:
            await self.clock.sleep(call.timeout)
        raise ApiUnknownError("no answer")

    def land(self) -> ApiCall | None:
        """A write that is still on its way lands, if its object has not changed. Returns it if it took effect."""
        if not self.flights:
            return None
        call = self.flights.pop(self.chance.randrange(len(self.flights)))
        try:
            self._apply(call)
        except ApiRefusedError:
            return None
        return call
