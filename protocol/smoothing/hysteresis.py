"""Hysteresis (S0.3): never delays growth; shrinks only if the need is clearly below the current size."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from protocol.smoothing.curves import without_noise
from protocol.smoothing.stage import Sample, Stage
from protocol.smoothing.window import WindowMax
from protocol.units import Instant, Seconds


class Hysteresis(Stage):
    """Holds the current size unless ``shifted``, an upper estimate of the need, is below it.

    ``shifted`` computes the estimate from a sample and the stage's input: see ``by_inputs`` and ``by_outputs``.
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
        """Delay shrinking by ``inputs`` units of the input of ``curve``."""
        rule = f"shrinks only if the size is above that for {inputs:g} more of input"
        # Shrinks only if the current size is above f(input + inputs), and then to f(input).
        return cls(lambda raw, _: curve(raw + inputs), rule, patience)

    @classmethod
    def by_outputs(cls, outputs: float, ratio: float, patience: Seconds | None = None) -> Hysteresis:
        """Delay shrinking until it saves more than ``outputs``, and at least the share ``ratio`` (below 1) of the
        current size.
        """
        conditions = [f"more than {outputs:g}"] * bool(outputs) + [f"at least {ratio:.0%} of the size"] * bool(ratio)
        rule = f"shrinks only if that saves {' and '.join(conditions) or 'anything'}"

        def shifted(_: float, value: float) -> float:
            # Lowered by more than the size in ``step``, so that exactly the ratio is enough.
            return max(value + outputs, without_noise(without_noise(value / (1 - ratio))))

        return cls(shifted, rule, patience)

    def step(self, now: Instant, value: float, sample: Sample) -> float:
        """The value if it is a growth or clearly below; otherwise the current size, until patience ends."""
        current = sample.current
        # On every step, because the window needs every value.
        most = self._patience_peak(now, value)
        self._waited = False
        # Without noise, because 0.1 + 0.01 * 24 is slightly less than 0.34.
        if current is None or value >= current or without_noise(current) > self._shifted(sample.value, value):
            return value
        # Without patience, a size slightly too large would be held forever.
        self._waited = most is not None and most < current
        return most if most is not None and self._waited else current

    def _patience_peak(self, now: Instant, value: float) -> float | None:
        """The maximum over a whole window of patience; None before one has passed, and without patience."""
        if self._patience is None:
            return None
        self._patience.add(value, now)
        return self._patience.max() if self._patience.is_full(now) else None

    def explain(self) -> str:
        """The rule, or that patience has ended."""
        return "no larger need for as long as patience lasts" if self._waited else self._rule
