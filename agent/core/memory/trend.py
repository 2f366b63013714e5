"""The trend of a guest's rereading and of its unused memory while its size stays the same (B.16)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from agent.core.policy import CachePolicy
from protocol.units import Bytes, Instant

STEADY: Final = 0.9
"""A loss that has fallen below this share of what it was a while ago is coming to its end."""

FILLING: Final = 0.25
"""If less than this share of what is read goes into unused memory, the guest does not fill it."""


@dataclass(slots=True)
class Trend:
    """``is_falling``: the rereading ends by itself. ``is_filling``: unused memory is being filled."""

    is_falling: bool = False
    is_filling: bool = True
    _at: Instant = Instant(0.0)
    _loss: float = 0.0
    _free: Bytes = Bytes(0)
    _read: float = 0.0

    def sees(self, loss: float, free: Bytes, now: Instant, policy: CachePolicy) -> None:
        """Compare ``loss`` and the unused memory with those of ``policy.recent`` seconds ago, once in that time."""
        # Once in a window: the change from one scrape to the next is no trend.
        if now - self._at < policy.recent:
            return
        filled = self._free.minus_or_zero(free).value
        self.is_falling, self.is_filling = loss < STEADY * self._loss, filled > FILLING * self._read
        self._at, self._loss, self._free, self._read = now, loss, free, 0.0

    def reads(self, count: float) -> None:
        """Add ``count`` bytes read from disk."""
        self._read += count
