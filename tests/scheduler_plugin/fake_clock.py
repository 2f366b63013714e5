"""A clock that stands still until a test moves it."""

from __future__ import annotations

import asyncio
import heapq
from datetime import UTC, datetime
from itertools import count

from protocol.units import Instant, Seconds


async def settle() -> None:
    """Lets every task run until it waits for something outside."""
    for _ in range(60):
        await asyncio.sleep(0)


BEGAN = datetime(2026, 1, 1, tzinfo=UTC).timestamp()


class FakeClock:
    """``Clock`` whose time only ``advance`` moves; chance is always a half."""

    def __init__(self) -> None:
        self._now = 1000.0
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []
        self._order = count()

    def now(self) -> Instant:
        return Instant(self._now)

    def wall(self) -> float:
        return BEGAN + self._now

    def timestamp(self) -> str:
        return datetime.fromtimestamp(self.wall(), UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")

    async def sleep(self, duration: Seconds) -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (self._now + duration, next(self._order), future))
        await future

    def jitter(self) -> float:
        return 0.5

    async def advance(self, duration: float) -> None:
        """Passes time, waking whoever sleeps in between, each at its own moment."""
        end = self._now + duration
        await settle()
        while self._sleepers and self._sleepers[0][0] <= end:
            at, _, future = heapq.heappop(self._sleepers)
            self._now = max(self._now, at)
            if not future.done():
                future.set_result(None)
            await settle()
        self._now = end
        await settle()
