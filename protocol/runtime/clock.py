"""Time and randomness as a port, and the machine's own. Only this file and the event loop read real time."""

from __future__ import annotations

import asyncio
import random
import time
from contextlib import suppress
from typing import Protocol

from protocol.units import Instant, Seconds


class Clock(Protocol):
    """A program's source of time and randomness; tests use ``tests.fake_clock.FakeClock``."""

    def now(self) -> Instant:
        """The present on a clock that never goes back."""

    def wall(self) -> float:
        """The present in seconds since 1970, to compare with what the API says; it may be set, even back.

        ``protocol.kubernetes.timestamps`` writes it as the API does.
        """

    async def sleep(self, duration: Seconds) -> None:
        """Return after ``duration``."""

    async def wait(self, event: asyncio.Event, until: Instant | None) -> None:
        """Return when ``event`` is set, or at ``until`` at the latest (None: only the event helps)."""

    def jitter(self) -> float:
        """A random number in [0, 1) that spreads simultaneous work; not for secrets."""


class SystemClock:
    """The machine's time and the process's own random numbers."""

    def now(self) -> Instant:
        """The monotonic clock, which the event loop uses too."""
        return Instant(time.monotonic())

    def wall(self) -> float:
        """The machine's calendar."""
        return time.time()

    async def sleep(self, duration: Seconds) -> None:
        """Sleep on the running event loop."""
        await asyncio.sleep(duration)

    async def wait(self, event: asyncio.Event, until: Instant | None) -> None:
        """Wait on the running event loop."""
        with suppress(TimeoutError):
            # The event loop's clock is the monotonic one, so an ``Instant`` is one of its times.
            async with asyncio.timeout_at(until):
                await event.wait()

    def jitter(self) -> float:
        """From the process's generator."""
        return random.random()
