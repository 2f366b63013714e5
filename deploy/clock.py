"""Time as a port: what the runtime's shells ask of a clock, so that tests own it."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime
from typing import Protocol

from protocol.units import Instant, Seconds


class Clock(Protocol):
    """A monotonic clock that can be waited on, and the date for what is written into objects."""

    def now(self) -> Instant:
        """The present instant."""

    def timestamp(self) -> str:
        """The present date and time in UTC as Kubernetes writes it."""

    async def sleep(self, span: Seconds) -> None:
        """Returns when ``span`` has passed."""


class SystemClock:
    """The machine's clock."""

    def now(self) -> Instant:
        """The monotonic clock."""
        return Instant(time.monotonic())

    def timestamp(self) -> str:
        """The wall clock, in UTC, to the second."""
        return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")

    async def sleep(self, span: Seconds) -> None:
        """Sleeps on the event loop."""
        await asyncio.sleep(span)
