"""A decaying histogram: what was enough for most of the recent past, for days, in a few hundred numbers.

Rules that hold here:

- Buckets grow geometrically, so an estimate is at most one bucket (``GROWTH``) above the true percentile, never below.
- Weights halve every half-life; time counts, not the number of samples: a value weighs as long as it stood.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import exp2, log
from typing import ClassVar, Final, Literal

import msgspec

from protocol.smoothing.stage import Sample, Stage, StateError, read_state
from protocol.units import Instant, Seconds

GROWTH: Final = 1.05
"""The ratio of one bucket's upper end to the next."""

BUCKETS: Final = 512
"""How many buckets there are: a range of eleven powers of ten."""

_LOG_GROWTH: Final = log(GROWTH)
_RENORMALISE: Final = 1e100
LONGEST_GAP: Final = 60.0
"""A value is not believed to have stood for longer than this many seconds without being seen again."""


class DecayingHistogram:
    """Time-weighted percentiles with exponential forgetting. ``smallest`` is the upper end of the first bucket."""

    __slots__ = ("_half_life", "_marks", "_smallest", "_total", "_unit", "_weights")

    def __init__(self, half_life: Seconds, smallest: float) -> None:
        self._half_life, self._smallest = half_life, smallest
        self._weights = [0.0] * (BUCKETS + 1)  # a Fenwick tree, from 1
        self._marks = [0.0] * BUCKETS
        self._total = 0.0
        self._unit = 1.0

    def age(self, seconds: float) -> None:
        """Lets everything seen so far count less. New weights grow instead; rarely all are scaled back."""
        self._unit *= exp2(seconds / self._half_life)
        if self._unit > _RENORMALISE:
            self.load({bucket: mark / self._unit for bucket, mark in enumerate(self._marks) if mark})

    def add(self, value: float, seconds: float) -> None:
        """Counts ``value`` (>= 0) as having stood for so many seconds."""
        index = 0 if value <= self._smallest else min(BUCKETS - 1, int(log(value / self._smallest) / _LOG_GROWTH) + 1)
        self._put(index, seconds * self._unit)

    def _put(self, index: int, weight: float) -> None:
        self._marks[index] += weight
        self._total += weight
        node = index + 1
        while node <= BUCKETS:
            self._weights[node] += weight
            node += node & -node

    def percentile(self, fraction: float) -> float:
        """The upper end of the bucket in which so large a part (0..1) of the weight is reached; 0 where empty."""
        if self._total <= 0:
            return 0.0
        wanted, node, span = fraction * self._total * (1 - 1e-12), 0, BUCKETS
        while span:
            if node + span < BUCKETS and self._weights[node + span] < wanted:
                node += span
                wanted -= self._weights[node]
            span //= 2
        return float(self._smallest * GROWTH**node)

    def dump(self) -> dict[int, float]:
        """The weight of every bucket that has one, in seconds as of now."""
        return {index: mark / self._unit for index, mark in enumerate(self._marks) if mark > 1e-9 * self._unit}

    def load(self, weights: Mapping[int, float]) -> None:
        """Replaces everything by ``dump``'s answer."""
        self._weights, self._marks = [0.0] * (BUCKETS + 1), [0.0] * BUCKETS
        self._total, self._unit = 0.0, 1.0
        for index, weight in weights.items():
            self._put(index, weight)


class HistogramState(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Weights by bucket; the value in force and its age in seconds."""

    weights: dict[int, float]
    value: float | None
    age: float | None


class HistogramStage(Stage):
    """A percentile of the recent past times a margin: as a floor under the value, or instead of it."""

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
        """The greater of value and percentile, or the percentile."""
        if self._at is not None and now > self._at:
            passed = now - self._at
            self._histogram.age(passed)
            self._histogram.add(self._last, min(passed, LONGEST_GAP))
        self._at, self._last = now, value
        self._level = self._histogram.percentile(self._fraction) * self._margin
        return max(value, self._level) if self._use == "floor" or self._level <= 0 else self._level

    def explain(self) -> str:
        """The percentile in numbers."""
        return f"P{self._fraction * 100:g} of the recent past times {self._margin:g} is {self._level:.6g} ({self._use})"

    def snapshot(self, now: Instant) -> Mapping[str, object]:
        """The weights, and the value in force."""
        age = None if self._at is None else now - self._at
        return {"weights": self._histogram.dump(), "value": self._last, "age": age}

    def restore(self, state: Mapping[str, object], now: Instant) -> None:
        """Takes up a snapshot."""
        read = read_state(state, HistogramState, self.name)
        if any(not 0 <= index < BUCKETS or weight < 0 for index, weight in read.weights.items()):
            raise StateError(f"{self.name}: weights: expected buckets 0..{BUCKETS - 1} with weights of zero or more")
        self._histogram.load(read.weights)
        self._at, self._last = (None if read.age is None else Instant(now - read.age)), read.value or 0.0
