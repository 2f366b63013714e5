"""What becomes of a guest's rereading and of its unused memory without any change of its size (B.16)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from agent.core.policy import CachePolicy
from protocol.units import Instant

STEADY: Final = 0.9
"""A loss that has fallen below this share of what it was a while ago is coming to its end."""

FILLING: Final = 0.01
"""Where the unused share of the memory falls by less than this in a while, the guest does not fill it."""


@dataclass(slots=True)
class Trend:
    """Whether the rereading comes to its end by itself, and whether unused memory is being filled."""

    is_falling: bool = False
    is_filling: bool = True
    _at: Instant = Instant(0.0)
    _loss: float = 0.0
    _unused: float = 1.0

    def sees(self, loss: float, unused: float, now: Instant, policy: CachePolicy) -> None:
        """Compares ``loss`` and the share ``unused`` of the memory with those of a while ago, once in a while."""
        if now - self._at >= policy.recent:
            self.is_falling, self.is_filling = loss < STEADY * self._loss, unused < self._unused - FILLING
            self._at, self._loss, self._unused = now, loss, unused
