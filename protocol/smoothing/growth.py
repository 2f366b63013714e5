"""The start of growth: how much of a rise counts (``sustain``), and the first step beyond it (``surge``).

Rules that hold here:

- ``sustain`` weights a need by its duration: after ``over`` seconds about two thirds of a rise count, and nearly all of
  it after three times that. It delays growth, so only a policy for CPU may use it.
- ``surge`` responds to a need above the current size with more than the need, for a short time, because a rise that
  exceeds the allocation usually continues.
"""

from __future__ import annotations

from math import exp
from typing import ClassVar

from protocol.smoothing.curves import without_noise
from protocol.smoothing.stage import Sample, Stage
from protocol.smoothing.window import WindowMax
from protocol.units import Instant, Seconds


class Sustain(Stage):
    """An exponentially weighted mean over ``over`` seconds (> 0). The first value counts in full."""

    __slots__ = ("_at", "_keep", "_level", "_over", "_pause")
    name: ClassVar[str] = "sustain"
    delays_growth: ClassVar[bool] = True

    def __init__(self, over: Seconds) -> None:
        self._over = over
        self._at: Instant | None = None
        self._level = self._pause = self._keep = 0.0

    def step(self, now: Instant, value: float, sample: Sample) -> float:  # noqa: ARG002 - the past decides
        """The weighted mean; the value counts for the whole time since the previous sample."""
        if self._at is None:
            self._level = value
        else:
            pause = now - self._at
            # Samples usually come at regular intervals, so the exponential is rarely computed.
            if pause != self._pause:
                self._pause, self._keep = pause, exp(-pause / self._over)
            self._level = value + (self._level - value) * self._keep
        self._at = now
        return self._level

    def explain(self) -> str:
        """The time constant of the mean."""
        return f"weighted by duration, over {self._over:g} s"


class Surge(Stage):
    """While the need exceeds the current size: ``factor`` (>= 1) times the need, held for ``span`` seconds."""

    __slots__ = ("_factor", "_span", "_surging", "_window")
    name: ClassVar[str] = "surge"

    def __init__(self, factor: float, span: Seconds) -> None:
        self._factor, self._span = factor, span
        self._window = WindowMax(span)
        self._surging = False

    def step(self, now: Instant, value: float, sample: Sample) -> float:
        """The larger of the value and the surge that is still held."""
        # A weighted mean may stay one float above the need, which is not short of anything.
        is_short = sample.current is not None and without_noise(value) > sample.current
        # Also add zeros: only ``add`` drops old values, so without them a surge would never end.
        self._window.add(value * self._factor if is_short else 0.0, now)
        surge = self._window.max() or 0.0
        self._surging = surge > value
        return surge if self._surging else value

    def explain(self) -> str:
        """Say if a surge is active."""
        return (
            f"{self._factor:g} times a need that was not covered, for {self._span:g} s" if self._surging else "covered"
        )
