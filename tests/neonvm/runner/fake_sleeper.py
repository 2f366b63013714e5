"""A guest that falls asleep on command, once a test allows it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from deploy.neonvm.ports import FellAsleep, GuestError, Woken
from protocol.units import Bytes, Seconds

FRAME = "10.1.0.7 sends data to port 5432"


def _open() -> asyncio.Event:
    event = asyncio.Event()
    event.set()
    return event


@dataclass
class FakeSleeper:
    """``orders`` are the orders that reached the guest. ``falls`` and ``wakes`` delay an order until they are set;
    ``falling`` is set once the guest has started to fall asleep.
    """

    orders: list[str] = field(default_factory=list)
    refusal: GuestError | None = None
    fault: GuestError | None = None
    deafness: GuestError | None = None
    frame: asyncio.Event = field(default_factory=asyncio.Event)
    falling: asyncio.Event = field(default_factory=asyncio.Event)
    falls: asyncio.Event = field(default_factory=_open)
    wakes: asyncio.Event = field(default_factory=_open)

    async def fall_asleep(self) -> FellAsleep:
        self.orders.append("sleep")
        self.falling.set()
        await self.falls.wait()
        if self.refusal is not None:
            raise self.refusal
        self.frame.clear()
        return FellAsleep(Bytes(200_000_000), 3)

    async def woken(self) -> str:
        self.orders.append("listen")
        await self.frame.wait()
        if self.deafness is not None:
            raise self.deafness
        return FRAME

    async def wake(self) -> Woken:
        self.orders.append("wake")
        await self.wakes.wait()
        if self.fault is not None:
            raise self.fault
        return Woken(Seconds(0.25))
