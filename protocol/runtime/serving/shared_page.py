"""A page that is costly to make and open to everyone, such as the metrics of a large fleet."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final

from protocol.runtime.clock import Clock
from protocol.units import Instant

REUSED_TIMES: Final = 10
"""A page that took 30 ms is reused for 0.3 s, so that no number of requests takes more than a tenth of a CPU."""


@dataclass(slots=True)
class SharedPage:
    """The page of ``make``, shared by all requests of the time in which it is reused."""

    make: Callable[[], Awaitable[bytes]]
    clock: Clock
    _page: bytes = b""
    _until: Instant | None = None
    _making: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def read(self) -> bytes:
        """The last page, or a new one if that is too old."""
        async with self._making:
            began = self.clock.now()
            if self._until is None or began >= self._until:
                self._page = await self.make()
                ended = self.clock.now()
                self._until = Instant(ended + REUSED_TIMES * (ended - began))
            return self._page
