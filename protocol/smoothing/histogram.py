"""A decaying histogram: the size that was enough most of the time over the last days, in constant memory.

Rules that hold here:

- Buckets grow geometrically, so an estimate is at most one bucket (``GROWTH``) above the true percentile, never below.
- Weights halve every half-life. A value is weighted by its duration, not by the number of samples.
"""

from __future__ import annotations

import sys
from math import exp2, log
from typing import ClassVar, Final, Literal

from protocol.smoothing.stage import Sample, Stage
from protocol.units import Instant, Seconds

GROWTH: Final = 1.05
"""The ratio of a bucket's upper end to the previous bucket's."""

BUCKETS: Final = 512
"""The number of buckets, which cover eleven powers of ten."""

_LOG_GROWTH: Final = log(GROWTH)
_RENORMALISE: Final = 1e100
_FORGOTTEN: Final = 200.0
"""Half-lives after which a value no longer counts; much larger exponents would overflow a float."""

# Above zero, so that even a share of 0 is reached only in a bucket with weight.
_LEAST: Final = sys.float_info.min

LONGEST_GAP: Final = 60.0
"""Maximum seconds that a value counts without another sample."""


class DecayingHistogram:
    """Time-weighted percentiles with exponential decay. ``smallest`` is the upper end of the first bucket."""

    __slots__ = ("_half_life", "_marks", "_smallest", "_total", "_unit", "_weights")

    def __init__(self, half_life: Seconds, smallest: float) -> None:
        self._half_life, self._smallest = half_life, smallest
        self._weights = [0.0] * (BUCKETS + 1)  # a Fenwick tree, from 1
        self._marks = [0.0] * BUCKETS
        self._total = 0.0
        self._unit = 1.0

    def age(self, seconds: float) -> None:
        """Let ``seconds`` pass: all earlier values count less."""
        # Instead of reducing all old weights, increase new ones: percentiles depend only on the ratio.
        self._unit *= exp2(min(seconds / self._half_life, _FORGOTTEN))
        # Rescale long before the weights could overflow a float.
        if self._unit > _RENORMALISE:
            self._scale_back()

    def add(self, value: float, seconds: float) -> None:
        """Add ``value`` (>= 0) with a duration of ``seconds``."""
        index = 0 if value <= self._smallest else min(BUCKETS - 1, int(log(value / self._smallest) / _LOG_GROWTH) + 1)
        self._put(index, seconds * self._unit)

    def _scale_back(self) -> None:
        weights = [mark / self._unit for mark in self._marks]
        self._weights, self._marks = [0.0] * (BUCKETS + 1), [0.0] * BUCKETS
        self._total, self._unit = 0.0, 1.0
        for bucket, weight in enumerate(weights):
            if weight:
                self._put(bucket, weight)

    def _put(self, index: int, weight: float) -> None:
        self._marks[index] += weight
        self._total += weight
        node = index + 1
        while node <= BUCKETS:
            self._weights[node] += weight
            # The next node that covers this bucket: add the lowest set bit.
            node += node & -node

    def percentile(self, fraction: float) -> float:
        """The upper end of the bucket in which this share (0..1) of the weight is reached; 0 if empty.

        A share of 0 is reached in the first bucket with weight.
        """
        if self._total <= 0:
            return 0.0
        # Slightly less than the exact share, because float sums may fall short of it.
        wanted, node, span = max(_LEAST, fraction * self._total * (1 - 1e-12)), 0, BUCKETS
        # A binary search down the Fenwick tree.
        while span:
            if node + span < BUCKETS and self._weights[node + span] < wanted:
                node += span
                wanted -= self._weights[node]
            span //= 2
        return float(self._smallest * GROWTH**node)


class HistogramStage(Stage):
    """A percentile of the recent past times a margin, as a minimum of the value or instead of it."""

    __slots__ = ("_at", "_fraction", "_histogram", "_last", "_level", "_margin", "_use")
    name: ClassVar[str] = "histogram"

    def __init__(
        self, half_life: Seconds, fraction: float, margin: float, smallest: float, use: Literal["floor", "target"]
    ) -> None:
        self._histogram = DecayingHistogram(half_life, smallest)
        self._fraction, self._margin, self._use = fraction, margin, use
        self._at: Instant | None = None
        self._last = self._level = 0.0

    def step(self, now: Instant, value: float, sample: Sample) -> float:  # noqa: ARG002 - the past decides
        """The larger of value and percentile, or the percentile."""
        if self._at is not None and now > self._at:
            passed = now - self._at
            self._histogram.age(passed)
            # The last value applied until now, but a gap without samples, such as a restart, must not count in full.
            self._histogram.add(self._last, min(passed, LONGEST_GAP))
        self._at, self._last = now, value
        self._level = self._histogram.percentile(self._fraction) * self._margin
        # An empty histogram has no effect.
        return max(value, self._level) if self._use == "floor" or self._level <= 0 else self._level

    def explain(self) -> str:
        """The percentile in numbers."""
        return f"P{self._fraction * 100:g} of the recent past times {self._margin:g} is {self._level:.6g} ({self._use})"


SHORTEST: Final = 60 / 86_400
"""Minimum history in days: the first sample counts as a minute."""


def confidence_factor(days: float, multiplier: float, exponent: float) -> float:
    """Factor for an estimate after ``days`` of history: (1 + ``multiplier`` / ``days``)^``exponent``.

    An exponent above zero raises the estimate, one below zero lowers it; both effects fade as days pass.

    >>> confidence_factor(1, 1, 1), round(confidence_factor(1 / 24, 0.001, -2), 3)
    (2.0, 0.954)
    """
    # Without this bound, the first sample would divide by zero.
    return float((1 + multiplier / max(days, SHORTEST)) ** exponent)
