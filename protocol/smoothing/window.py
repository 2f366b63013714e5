"""The greatest value within a sliding span of time, in constant amortised time and bounded memory (S0.4).

Rules that hold here:

- A value stands from its instant until the next one arrives, so the value in force when the window opens counts.
- The maximum proves something only once a whole window has been seen; ``is_full`` says so. The comparison is strict.
- Memory is bounded whatever the rate of samples: of values that arrive within one ``span / RESOLUTION`` only the
  greatest and the newest are kept, which may hold a maximum longer by at most that much, never shorter.
"""

from __future__ import annotations

from collections import deque
from math import inf
from typing import Final

from protocol.units import Instant, Seconds

RESOLUTION: Final = 1024
"""Into how many parts a window is cut at most; each holds two values."""


class WindowMax:
    """The maximum of a value over the last ``span`` seconds (> 0): a queue of ever smaller, ever younger values."""

    __slots__ = ("_entries", "_grain", "_since", "_span")

    def __init__(self, span: Seconds) -> None:
        if not 0 < span < inf:
            raise ValueError(f"a window needs a span above zero seconds, got {span}")
        self._span = span
        self._grain = span / RESOLUTION
        self._since: float | None = None
        self._entries: deque[list[float]] = deque()  # [value, kept since, superseded at], values strictly falling

    def add(self, value: float, at: Instant) -> None:
        """Takes the value in force from ``at`` on; ``at`` never goes back."""
        entries = self._entries
        if self._since is None:
            self._since = at
        if entries:
            entries[-1][2] = at
        while entries and entries[-1][0] <= value:
            entries.pop()
        oldest = at - self._span
        while entries and entries[0][2] < oldest:
            entries.popleft()
        if len(entries) > 1 and at - entries[-2][1] < self._grain:
            entries[-2][2] = at
            entries[-1] = [value, at, inf]
        else:
            entries.append([value, at, inf])

    def max(self) -> float | None:
        """The greatest value in force within ``span`` before the last ``add``; None before the first."""
        return self._entries[0][0] if self._entries else None

    def is_full(self, now: Instant) -> bool:
        """Return True if more than ``span`` has passed since the first value: only then is ``max`` a proof."""
        return self._since is not None and now - self._since > self._span
