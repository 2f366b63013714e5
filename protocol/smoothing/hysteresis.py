"""Hysteresis (S0.3): growing is never delayed, shrinking waits until the need is clearly below what there is.

``inputs`` shifts the input of the curves before this stage: shrink only where ``current > f(input + inputs)``, and then
to ``f(input)``. ``outputs`` and ``ratio`` say the same of values: shrink only where current is above the value
by more than ``outputs``, and the value is below ``(1 - ratio)`` of current.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from protocol.smoothing.stage import Sample, Stage
from protocol.units import Instant


class Hysteresis(Stage):
    """Holds what there is while ``shifted`` of the need, an upper estimate, does not fall below it.

    ``shifted`` maps a sample and the value that reaches the stage to that estimate: see ``by_inputs``, ``by_outputs``.
    """

    __slots__ = ("_reason", "_shifted", "_threshold")
    name: ClassVar[str] = "hysteresis"

    def __init__(self, shifted: Callable[[float, float], float], reason: str) -> None:
        self._shifted = shifted
        self._reason = reason
        self._threshold = 0.0

    @classmethod
    def by_inputs(cls, curve: Callable[[float], float], inputs: float) -> Hysteresis:
        """Delays shrinking by so many units of the input of ``curve``."""
        return cls(lambda raw, _: curve(raw + inputs), f"the value for {inputs:g} more of input")

    @classmethod
    def by_outputs(cls, outputs: float, ratio: float) -> Hysteresis:
        """Delays shrinking until it saves more than ``outputs``, and at least ``ratio`` (below 1) of what there is."""
        return cls(
            lambda _, value: max(value + outputs, value / (1 - ratio)),
            f"{outputs:g} more and {1 / (1 - ratio):.3g} times",
        )

    def step(self, now: Instant, value: float, sample: Sample) -> float:  # noqa: ARG002 - hysteresis knows no time
        """The value where it grows or is well below; otherwise what there is."""
        current = sample.current
        self._threshold = self._shifted(sample.value, value)
        if current is None or value >= current or current > self._threshold:
            return value
        return current

    def explain(self) -> str:
        """The level above which current must be before anything shrinks."""
        return f"shrinks only from above {self._threshold:.6g} ({self._reason})"
