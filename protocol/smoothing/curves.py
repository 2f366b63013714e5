"""The linear model and the segment model (S0.1, S0.2): what an input of some size should be given.

Rules that hold here:

- A curve has no state and never falls where its input rises.
- Rounding is always up.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from math import ceil, inf
from typing import ClassVar, Final

from protocol.smoothing.stage import Curve

# Summing the sizes of many nodes leaves noise in an input; outputs get no such slack, see ``quantize``.
INPUT_SLACK: Final = 1e-3
"""The part of a segment's step by which an input may exceed a multiple and still count as that multiple."""


class CurveModel(Curve):
    """``base + slope * input / per``, at most ``limit`` (S0.1). A missing input is an input of zero."""

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
    """Rounds the input up to a multiple of ``every`` of the segment with the greatest ``at`` not above it (S0.2).

    ``steps`` are pairs ``(at, every)``; inputs below the first segment pass unchanged. A coarse segment never rounds
    past the start of the next, so that a finer one cannot make the result fall.
    """

    __slots__ = ("_starts", "_steps")
    name: ClassVar[str] = "segments"

    def __init__(self, steps: Sequence[tuple[float, float]]) -> None:
        ordered = sorted(steps)
        self._starts = [at for at, _ in ordered]
        self._steps = [every for _, every in ordered]

    def noise(self, value: float, every: float) -> float:  # noqa: ARG002 - that of an output depends on the value
        """By how much ``value`` may exceed a multiple of ``every`` and still count as that multiple."""
        return INPUT_SLACK * every

    def at(self, value: float) -> float:
        """The input rounded up as its segment says."""
        index = bisect_right(self._starts, value) - 1
        if index < 0:
            return value
        every = self._steps[index]
        rounded = ceil((value - self.noise(value, every)) / every) * every
        following = self._starts[index + 1] if index + 1 < len(self._starts) else inf
        return min(rounded, max(following, value))

    def explain(self) -> str:
        """The segments as text."""
        parts = (f"{every:g} from {at:g}" for at, every in zip(self._starts, self._steps, strict=True))
        return f"rounded up to multiples of {', '.join(parts)}"
