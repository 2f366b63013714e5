"""The maximum over a sliding window, in constant amortized time and bounded memory (S0.4)."""

from __future__ import annotations

from collections import deque
from math import inf
from typing import Final

from protocol.units import Instant, Seconds

RESOLUTION: Final = 1024
"""Maximum number of parts of a window; each stores two values."""


class WindowMax:
    """The maximum of a value over the last ``span`` seconds (> 0), as a queue of decreasing values, oldest first."""

    __slots__ = ("_entries", "_grain", "_since", "_span")

    def __init__(self, span: Seconds) -> None:
        if not 0 < span < inf:
            raise ValueError(f"a window needs a span above zero seconds, got {span}")
        self._span = span
        self._grain = span / RESOLUTION
        self._since: float | None = None
        self._entries: deque[list[float]] = deque()  # [value, valid from, valid until], strictly decreasing values

    def add(self, value: float, at: Instant) -> None:
        """Add a value that is valid from ``at``; ``at`` never decreases."""
        entries = self._entries
        if self._since is None:
            self._since = at
        if entries:
            # A value is valid until the next one, so the one that was valid when the window starts still counts.
            entries[-1][2] = at
        # A smaller, older value can never be the maximum any more.
        while entries and entries[-1][0] <= value:
            entries.pop()
        oldest = at - self._span
        while entries and entries[0][2] < oldest:
            entries.popleft()
        # Values within one grain share two entries, which bounds the memory. They may count for one grain too long, but
        # never too short.
        if len(entries) > 1 and at - entries[-2][1] < self._grain:
            entries[-2][2] = at
            entries[-1] = [value, at, inf]
        else:
            entries.append([value, at, inf])

    def max(self) -> float | None:
        """The maximum value that was valid within ``span`` before the last ``add``; None before the first."""
        return self._entries[0][0] if self._entries else None

    def is_full(self, now: Instant) -> bool:
        """Return True if more than ``span`` has passed since the first value; only then is ``max`` a proof."""
        # Strictly more, because a value from exactly ``span`` ago may still be valid.
        return self._since is not None and now - self._since > self._span
