"""Time and chance as the service sees them, so that tests bring their own.

Only this file and the HTTP servers know that real time passes.
"""

from __future__ import annotations

import asyncio
import random
import time
from datetime import UTC, datetime
from typing import Protocol

from protocol.units import Instant, Seconds


class Clock(Protocol):
    """A monotonic clock, a calendar, a pause and a die."""

    def now(self) -> Instant:
        """The present on a clock that never goes back."""

    def wall(self) -> float:
        """The present in seconds since 1970, to compare with what the API says; it may be set, even back."""

    def timestamp(self) -> str:
        """The present as RFC 3339 in UTC with microseconds, for objects that people read."""

    async def sleep(self, duration: Seconds) -> None:
        """Returns after ``duration``."""

    def jitter(self) -> float:
        """A number from 0 up to, not including, 1."""


class SystemClock:
    """The machine's own time."""

    def now(self) -> Instant:
        """Seconds since some moment before this process began."""
        return Instant(time.monotonic())

    def wall(self) -> float:
        """The machine's calendar."""
        return time.time()

    def timestamp(self) -> str:
        """The wall clock's time."""
        return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")

    async def sleep(self, duration: Seconds) -> None:
        """Sleeps on the running event loop."""
        await asyncio.sleep(duration)

    def jitter(self) -> float:
        """From the process's own generator; it spreads load and guards nothing."""
        return random.random()
