"""A histogram of use with exponential buckets and exponential decay: VPA's, small enough for an object's status.

Rules that hold here:

- Each bucket is 5 % wider than the one before it. A percentile is the upper end of its bucket, so never too little.
- A histogram is a value: adding gives a new one. A checkpoint holds at most ``BUCKETS`` whole numbers.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, replace
from itertools import accumulate
from math import exp2
from typing import Final

from protocol.units import Seconds

GROWTH: Final = 1.05
"""The ratio of the width of one bucket to that of the one before it."""

BUCKETS: Final = 176
"""The number of buckets: the last one begins at about 100,000 times the end of the first."""

CHECKPOINT_WEIGHT: Final = 10_000
"""The weight of the heaviest bucket in a checkpoint; a bucket that rounds to 0 beside it is forgotten."""

_LARGEST_EXPONENT: Final = 100.0
_FORGOTTEN: Final = 1000.0
_STARTS: Final = tuple(accumulate((GROWTH**number for number in range(BUCKETS)), initial=0.0))
_EMPTY: Final = (0.0,) * BUCKETS


@dataclass(frozen=True, slots=True)
class UsageHistogram:
    """Weights of buckets of which the first is ``first`` wide (> 0). ``since`` is when a weight of 1 counts as 1.

    Times are seconds since 1970.
    """

    first: float
    half_life: Seconds
    since: float = 0.0
    weights: tuple[float, ...] = _EMPTY

    def add(self, value: float, weight: float, at: float) -> UsageHistogram:
        """With one sample (>= 0) of that weight at that time; a negative weight takes a sample back."""
        current = self._brought_to(at)
        bucket = self._bucket(value)
        # New weights grow instead of old ones shrinking, so adding touches one bucket only.
        changed = max(0.0, current.weights[bucket] + weight * exp2((at - current.since) / self.half_life))
        return replace(current, weights=(*current.weights[:bucket], changed, *current.weights[bucket + 1 :]))

    def percentile(self, fraction: float) -> float | None:
        """The upper end of the bucket in which this share (0 to 1) of the weight is reached; None if empty."""
        reached = tuple(accumulate(self.weights))
        if reached[-1] <= 0:
            return None
        wanted = fraction * reached[-1]
        bucket = next(bucket for bucket, weight in enumerate(self.weights) if weight and reached[bucket] >= wanted)
        return self.first * _STARTS[bucket + 1]

    def checkpoint(self) -> dict[str, int]:
        """The weights as whole numbers by bucket, relative to the heaviest."""
        heaviest = max(self.weights)
        if heaviest <= 0:
            return {}
        parts = ((number, round(weight / heaviest * CHECKPOINT_WEIGHT)) for number, weight in enumerate(self.weights))
        return {str(number): part for number, part in parts if part}

    def restored(self, weights: dict[str, int], total: float, at: float) -> UsageHistogram:
        """With the weights of a checkpoint, which had ``total`` weight at that time. Unknown buckets are left out."""
        # A checkpoint has weights relative to the heaviest bucket; the total restores their scale.
        whole = sum(weights.values())
        parts = [max(0, weights.get(str(number), 0)) for number in range(BUCKETS)]
        scale = total / whole if whole > 0 else 0.0
        return replace(self, since=at, weights=tuple(part * scale for part in parts))

    def total(self, at: float) -> float:
        """The weight of everything, as it counts at that time."""
        return sum(self.weights) * exp2(max(-_FORGOTTEN, min(_FORGOTTEN, (self.since - at) / self.half_life)))

    def _bucket(self, value: float) -> int:
        # `bisect_right` finds the first bucket that starts above the value, so the value is in the one before.
        return min(BUCKETS - 1, max(0, bisect_right(_STARTS, value / self.first) - 1))

    def _brought_to(self, at: float) -> UsageHistogram:
        """The same, with ``at`` as its time if it is empty or new weights would become too large."""
        if not any(self.weights):
            return replace(self, since=at)
        exponent = (at - self.since) / self.half_life
        if exponent <= _LARGEST_EXPONENT:
            return self
        # Scale all weights down before new ones become too large for a float.
        factor = exp2(-min(exponent, _FORGOTTEN))
        return replace(self, since=at, weights=tuple(weight * factor for weight in self.weights))
