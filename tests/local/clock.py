"""A clock that tests own: sleepers wake only when a test moves the time."""

from __future__ import annotations

import asyncio

from protocol.units import Instant, Seconds


class FakeClock:
    """Stands still until ``pass_time`` is called."""

    def __init__(self) -> None:
        self._now = 1000.0
        self._sleepers: list[tuple[float, asyncio.Event]] = []

    def now(self) -> Instant:
        return Instant(self._now)

    def timestamp(self) -> str:
        return "2026-01-01T00:00:00Z"

    async def sleep(self, span: Seconds) -> None:
        wake = asyncio.Event()
        self._sleepers.append((self._now + span, wake))
        await wake.wait()

    async def pass_time(self, span: float) -> None:
        """Moves the time, wakes whom it concerns, and lets everybody do what there is to do."""
        self._now += span
        due = [wake for at, wake in self._sleepers if at <= self._now]
        self._sleepers = [(at, wake) for at, wake in self._sleepers if at > self._now]
        for wake in due:
            wake.set()
        await settle()


async def settle() -> None:
    """Lets every task run until it waits for something."""
    for _ in range(50):
        await asyncio.sleep(0)
