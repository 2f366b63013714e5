"""Limits how often each VM or pod is written for its agent, which may be anyone's."""

from __future__ import annotations

from typing import Final, Generic, TypeVar

from protocol.runtime.clock import Clock
from protocol.units import Instant, Seconds

K = TypeVar("K")

INTERVAL: Final = Seconds(0.5)
"""Average interval between writes. An agent usually asks once a second, or after several seconds."""

BURST: Final = 10
"""Writes at once."""

MAX_WAIT: Final = Seconds(5.0)
"""An agent waits this long for a response."""


class Pacer(Generic[K]):
    """Paces writes by key. Of those that wait, only the newest goes on."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        # When the writes so far would end at ``INTERVAL``, and their number; the key of the last write comes last.
        self._paced: dict[K, tuple[Instant, int]] = {}

    async def turn(self, key: K) -> bool:
        """Wait until ``key`` may be written; return False if a newer write of it has come meanwhile."""
        now = self._clock.now()
        busy_until, count = self._paced.pop(key, (now, 0))
        due, number = max(busy_until, now) + INTERVAL, count + 1
        self._paced[key] = Instant(min(due, now + BURST * INTERVAL + MAX_WAIT)), number
        # Keys in front were written before, so they are over first.
        while self._paced[oldest := next(iter(self._paced))][0] <= now:
            del self._paced[oldest]
        wait = due - now - BURST * INTERVAL
        if wait <= 0:
            return True
        await self._clock.sleep(Seconds(min(wait, MAX_WAIT)))
        return self._paced.get(key, (now, number))[1] == number
