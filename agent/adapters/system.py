"""The machine's clock and its chance."""

from __future__ import annotations

import asyncio
import random
import time
from contextlib import suppress

from protocol.units import Instant


class SystemClock:
    """The monotonic clock, which the event loop uses too."""

    def now(self) -> Instant:
        """This instant."""
        return Instant(time.monotonic())

    async def wait(self, event: asyncio.Event, until: Instant | None) -> None:
        """Returns when ``event`` is set, or at ``until`` at the latest (None: only the event helps)."""
        with suppress(TimeoutError):
            async with asyncio.timeout_at(until):
                await event.wait()


class SystemDice:
    """Chance from the process's own generator: it spreads load and guards nothing."""

    def roll(self) -> float:
        """A number in 0..1."""
        return random.random()
