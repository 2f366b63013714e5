"""The percentage estimation model (S0.5): a value that was enough for most of a window."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from typing import ClassVar, Final

from protocol.smoothing.stage import Sample, Stage
from protocol.units import Instant, Seconds

MAX_SAMPLES: Final = 4096
"""Maximum samples per window: an hour, with one sample per second."""

ENOUGH: Final = 3
"""Minimum samples for a change, unless a policy says otherwise."""

MAX_ENOUGH: Final = MAX_SAMPLES // 2
"""Maximum of that: of a window with slightly more than ``MAX_SAMPLES`` samples, every second one counts."""


def percentile_index(count: int, fraction: float) -> int:
    """The index of the percentile ``fraction`` (0..1) among ``count`` (> 0) ascending values.

    >>> percentile_index(10, 0.5), percentile_index(10, 1.0)
    (5, 9)
    """
    # The epsilon keeps a product such as 100 * 0.29 from falling below the integer.
    return max(0, min(count - 1, int(count * fraction + 1e-9)))


class Percentile(Stage):
    """Holds the current size if it is between P(``low``) and P(``high``) of the last ``span`` seconds; otherwise moves
    to P(``target``).
    """

    __slots__ = ("_ascending", "_enough", "_grain", "_high", "_low", "_reason", "_samples", "_span", "_target")
    name: ClassVar[str] = "percentile"
    delays_growth: ClassVar[bool] = True

    def __init__(
        self,
        span: Seconds,
        target: float = 0.80,
        low: float = 0.60,
        high: float = 0.95,
        enough: int = ENOUGH,
    ) -> None:
        self._span, self._enough = span, enough
        self._target, self._low, self._high = target, low, high
        self._grain = span / MAX_SAMPLES
        self._samples: deque[tuple[float, float]] = deque()
        self._ascending: list[float] = []
        self._reason = "no samples yet"

    def step(self, now: Instant, value: float, sample: Sample) -> float:
        """The current size, or the target percentile if the current size is outside the thresholds."""
        self._add(now, value)
        current = sample.current
        if len(self._ascending) < self._enough:
            self._reason = f"{len(self._ascending)} samples are too few"
            # Without a current size there is nothing to hold.
            return value if current is None else current
        low, high = self._value_at(self._low), self._value_at(self._high)
        if current is not None and low <= current <= high:
            self._reason = f"between {low:.6g} and {high:.6g}"
            return current
        self._reason = f"outside {low:.6g} to {high:.6g}, so to P{self._target:.0%}".replace("%", "")
        return self._value_at(self._target)

    def _value_at(self, fraction: float) -> float:
        return self._ascending[percentile_index(len(self._ascending), fraction)]

    def _add(self, now: Instant, value: float) -> None:
        oldest = now - self._span
        while self._samples and self._samples[0][0] < oldest:
            self._drop(self._samples.popleft()[1])
        # Of samples closer together than the grain only the first counts, which limits the window to ``MAX_SAMPLES``.
        # Not the largest: the percentiles of a long window would then be its peaks.
        if self._samples and now - self._samples[-1][0] < self._grain:
            return
        self._samples.append((now, value))
        insort(self._ascending, value)

    def _drop(self, value: float) -> None:
        # Equal values are interchangeable, so delete the first one.
        del self._ascending[bisect_left(self._ascending, value)]

    def explain(self) -> str:
        """The position of the current size among the percentiles."""
        return f"{self._reason} over {self._span:g} s"
