"""The port for time and randomness, and its system implementation. Only this file and the event loop read real time."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final, Protocol

from protocol.units import Instant, Seconds


class Clock(Protocol):
    """A program's source of time and randomness; tests use ``tests.fake_clock.FakeClock``."""

    def now(self) -> Instant:
        """The current time on a monotonic clock."""

    def wall(self) -> float:
        """The current time in seconds since 1970, to compare with the API's timestamps; it may be set, even back.

        ``protocol.kubernetes.timestamps`` formats it.
        """

    async def sleep(self, duration: Seconds) -> None:
        """Return after ``duration``."""

    async def wait(self, event: asyncio.Event, until: Instant | None) -> None:
        """Return when ``event`` is set, or at ``until`` at the latest (None: wait for the event)."""

    def jitter(self) -> float:
        """A random number in [0, 1) that spreads simultaneous work; not for secrets."""


class SystemClock:
    """The system clock and Python's random number generator."""

    def now(self) -> Instant:
        """The monotonic clock, which the event loop also uses."""
        return Instant(time.monotonic())

    def wall(self) -> float:
        """The system's wall clock."""
        return time.time()

    async def sleep(self, duration: Seconds) -> None:
        """Sleep on the running event loop."""
        await asyncio.sleep(duration)

    async def wait(self, event: asyncio.Event, until: Instant | None) -> None:
        """Wait on the running event loop."""
        with suppress(TimeoutError):
            # The event loop's clock is the monotonic one, so an ``Instant`` is a time of the loop.
            async with asyncio.timeout_at(until):
                await event.wait()

    def jitter(self) -> float:
        """See ``Clock``."""
        return random.random()


_PAUSE: Final = Seconds(0.05)


async def wait_until(condition: Callable[[], bool], clock: Clock, at_most: Seconds) -> bool:
    """Return True as soon as ``condition`` returns True, False after ``at_most``."""

    async def poll() -> bool:
        return condition()

    return await poll_until(poll, clock, at_most)


async def poll_until(condition: Callable[[], Awaitable[bool]], clock: Clock, at_most: Seconds) -> bool:
    """Like ``wait_until``, for an asynchronous condition."""
    deadline = clock.now() + at_most
    while not await condition():
        if clock.now() >= deadline:
            return False
        await clock.sleep(_PAUSE)
    return True
