"""Shrinks to the maximum need in a whole window (S0.4), the decay over time that hysteresis alone lacks."""

from __future__ import annotations

from typing import ClassVar

from protocol.smoothing.stage import Sample, Stage
from protocol.smoothing.window import WindowMax
from protocol.units import Instant, Seconds


class Hold(Stage):
    """Returns the share ``keep`` (0..1) of the maximum over ``span`` seconds plus ``extra`` if that exceeds the value,
    but never grows beyond the current size because of it.

    A shrink follows another only after more than ``pause`` seconds. Several holds in a row decay gradually: the whole
    maximum for a short window, a part of it for a longer one.
    """

    __slots__ = ("_extra", "_fell", "_keep", "_last", "_pause", "_reason", "_span", "_window")
    name: ClassVar[str] = "hold"

    def __init__(self, span: Seconds, pause: Seconds = Seconds(0.0), keep: float = 1.0, extra: float = 0.0) -> None:
        self._span, self._pause, self._keep, self._extra = span, pause, keep, extra
        self._window = WindowMax(span)
        self._last: float | None = None
        self._fell: Instant | None = None
        self._reason = "no samples yet"

    def step(self, now: Instant, value: float, sample: Sample) -> float:
        """The window's maximum; the current size if that is larger and a shrink is not proven or not yet due."""
        current = sample.current
        # The size changes elsewhere, so detect a shrink by comparing with the last sample.
        if current != self._last:
            if current is not None and self._last is not None and current < self._last:
                self._fell = now
            self._last = current
        self._window.add(value, now)
        most = max(value, self._keep * (self._window.max() or 0.0) + self._extra)
        if current is None or most >= current:
            self._reason = "maximum of the window"
            # An earlier need that was never granted is no reason to grow.
            return most if current is None else max(value, current)
        if not self._window.is_full(now):
            # Only a whole window proves that less is enough; after a restart the window is empty.
            self._reason = "no whole window observed yet"
            return current
        if self._pause and self._fell is not None and now - self._fell <= self._pause:
            self._reason = "shrank too recently"
            return current
        self._reason = "maximum of a whole window"
        return most

    def explain(self) -> str:
        """Say which rule applied."""
        share = "" if self._keep == 1.0 else f", {self._keep:.0%} of it"
        more = "" if not self._extra else f" and {self._extra:g}"
        return f"{self._reason} ({self._span:g} s{share}{more})"
