"""The linear model and the segment model (S0.1, S0.2), which map an input to a size."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from math import ceil, inf
from typing import ClassVar, Final

from protocol.smoothing.stage import Curve

NOISE: Final = 1e-12
"""The relative error of float sums: a value this little above a multiple counts as that multiple."""

# Summing the sizes of many nodes leaves noise in an input.
INPUT_SLACK: Final = 1e-3
"""The share of a segment's step by which an input may exceed a multiple and still count as that multiple."""

MAX_SLACK: Final = 0.5
"""The maximum of that: a whole node or vCPU more is never noise, however wide the step."""


def without_noise(value: float) -> float:
    """``value`` minus possible float noise, at most half a unit.

    >>> without_noise(2.0**40 + 1) > 2.0**40
    True
    """
    return value - min(value * NOISE, 0.5)


class CurveModel(Curve):
    """``base + slope * input / per``, at most ``limit`` (S0.1). A missing input counts as zero."""

    __slots__ = ("_base", "_limit", "_per", "_slope")
    name: ClassVar[str] = "model"

    def __init__(self, base: float, slope: float, per: float = 1.0, limit: float = inf) -> None:
        self._base, self._slope, self._per, self._limit = base, slope, per, limit

    def at(self, value: float) -> float:
        """The model's value for an input (>= 0)."""
        return min(self._limit, self._base + self._slope * value / self._per)

    def explain(self) -> str:
        """The model as a formula."""
        at_most = "" if self._limit == inf else f", at most {self._limit:g}"
        return f"{self._base:g} + {self._slope:g} per {self._per:g} of input{at_most}"


class Segments(Curve):
    """Rounds the input up to a multiple of ``every`` of the segment with the largest ``at`` not above it (S0.2).

    ``steps`` are pairs ``(at, every)``; inputs below the first segment pass unchanged. A segment never rounds past the
    start of the next, so that the result never falls if that is finer. The slack does not apply to outputs
    (``is_output``).
    """

    __slots__ = ("_is_output", "_starts", "_steps")
    name: ClassVar[str] = "segments"

    def __init__(self, steps: Sequence[tuple[float, float]], *, is_output: bool = False) -> None:
        self._is_output = is_output
        ordered = sorted(steps)
        self._starts = [at for at, _ in ordered]
        self._steps = [every for _, every in ordered]

    def at(self, value: float) -> float:
        """The input, rounded up in its segment."""
        index = bisect_right(self._starts, value) - 1
        if index < 0:
            return value
        every = self._steps[index]
        slack = min(MAX_SLACK, INPUT_SLACK * every)
        # The slack must not reach below the segment.
        exact = without_noise(value) if self._is_output else max(self._starts[index], value - slack)
        rounded = ceil(exact / every) * every
        following = self._starts[index + 1] if index + 1 < len(self._starts) else inf
        return min(rounded, max(following, value))

    def explain(self) -> str:
        """The segments as text."""
        parts = (f"{every:g} from {at:g}" for at, every in zip(self._starts, self._steps, strict=True))
        return f"rounded up to multiples of {', '.join(parts)}"
