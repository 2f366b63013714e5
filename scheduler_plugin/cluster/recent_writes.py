"""Times at which writes of unknown outcome were sent; each may still land for a while."""

from __future__ import annotations

from typing import Generic, TypeVar

from protocol.units import Instant, Seconds

K = TypeVar("K")


class RecentWrites(Generic[K]):
    """Writes by their subject. ``settle`` after it was sent, a write has landed or never will."""

    def __init__(self, settle: Seconds) -> None:
        self._settle = settle
        self._sent_at: dict[K, Instant] = {}

    def __len__(self) -> int:
        return len(self._sent_at)

    def sent(self, about: K, now: Instant) -> None:
        """A write is on its way."""
        # Pruned here, so that the table stays small whatever becomes of the writes.
        recent = {key: at for key, at in self._sent_at.items() if now - at < self._settle}
        self._sent_at = recent | {about: now}

    def settled(self, about: K) -> None:
        """Record that the write's outcome is known."""
        self._sent_at.pop(about, None)

    def may_land(self, about: K, now: Instant) -> bool:
        """Return True if a write that was sent may still take effect."""
        sent = self._sent_at.get(about)
        return sent is not None and now - sent < self._settle
