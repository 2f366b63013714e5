"""Hysteresis (S0.3): growing is never delayed, shrinking waits until the need is clearly below the present size."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from protocol.smoothing.stage import FOR_EVER, Sample, Stage
from protocol.smoothing.window import WindowMax
from protocol.units import Instant, Seconds


class Hysteresis(Stage):
    """Holds the present size while ``shifted`` of the need, an upper estimate, does not fall below it.

    ``shifted`` maps a sample and the value that reaches the stage to that estimate: see ``by_inputs``, ``by_outputs``.
    """

    __slots__ = ("_patience", "_rule", "_shifted", "_waited")
    name: ClassVar[str] = "hysteresis"

    def __init__(self, shifted: Callable[[float, float], float], rule: str, patience: Seconds | None = None) -> None:
        self._shifted = shifted
        self._rule = rule
        self._patience = None if patience is None else WindowMax(patience)
        self._waited = False

    @classmethod
    def by_inputs(cls, curve: Callable[[float], float], inputs: float, patience: Seconds | None = None) -> Hysteresis:
        """Delay shrinking by this many units of the input of ``curve``."""
        rule = f"shrinks only from above the value for {inputs:g} more of input"
        # Shrinks only if the present size is above f(input + inputs), and then to f(input).
        return cls(lambda raw, _: curve(raw + inputs), rule, patience)

    @classmethod
    def by_outputs(cls, outputs: float, ratio: float, patience: Seconds | None = None) -> Hysteresis:
        """Delay shrinking until it saves more than ``outputs``, and at least ``ratio`` (below 1) of the present
        size.
        """
        saves = [f"more than {outputs:g}"] * bool(outputs) + [f"at least {ratio:.0%} of what there is"] * bool(ratio)
        rule = f"shrinks only where that saves {' and '.join(saves) or 'anything'}"
        # Shrinks only if the value is below (1 - ratio) of the present size, and by more than ``outputs``.
        return cls(lambda _, value: max(value + outputs, value / (1 - ratio)), rule, patience)

    def step(self, now: Instant, value: float, sample: Sample) -> float:
        """The value if it grows or is well below; otherwise the present size, until patience ends."""
        current = sample.current
        # On every step, since the window must see every value.
        most = self._most(now, value)
        self._waited = False
        if current is None or value >= current or current > self._shifted(sample.value, value):
            return value
        # The offset alone would keep a little too much forever; patience ends that.
        self._waited = most is not None and most < current
        return most if most is not None and self._waited else current

    def _most(self, now: Instant, value: float) -> float | None:
        """The most of a whole window of patience; None before one has passed, and without patience."""
        if self._patience is None:
            return None
        self._patience.add(value, now)
        return self._patience.max() if self._patience.is_full(now) else None

    def steady_until(self, now: Instant) -> Instant:
        """Until patience may end; for ever without it."""
        return FOR_EVER if self._patience is None else self._patience.steady_until(now)

    def explain(self) -> str:
        """The rule, or that patience has ended it."""
        return "nothing more was needed for as long as patience lasts" if self._waited else self._rule
