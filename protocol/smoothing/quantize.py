"""Output quantization (S0.6): rounds up to readable values, ignoring float noise.

A ladder has the rungs ``base``, ``base + step``, and then steps that grow by ``ratio`` up to ``largest``; ``base`` is
the lowest rung. Each grown step is truncated to whole units, so that rungs are amounts that a VM can have. Segments
``{at, every}`` are an alternative notation, as for inputs. A base alone is also the step.
"""

from __future__ import annotations

from bisect import bisect_left
from math import ceil, floor, inf
from typing import ClassVar, Final

from protocol.smoothing.curves import NOISE, without_noise
from protocol.smoothing.stage import Curve

MAX_RUNGS: Final = 512
"""Maximum growing steps of a ladder; after that its last step repeats."""

MILLI: Final = 0.001
"""The unit of an amount in vCPUs."""

SMALLEST_MEMORY: Final = 1024
"""A ladder that starts with at least this value is in bytes: no machine has that many vCPUs."""


class Quantize(Curve):
    """A ladder of values. ``step`` of None means ``base``; with neither, values pass unchanged.

    Steps are truncated to multiples of ``unit``; None for whole bytes, or thousandths for a ladder of vCPUs.
    """

    __slots__ = ("_base", "_last_step", "_rungs")
    name: ClassVar[str] = "quantize"

    def __init__(
        self,
        base: float | None = None,
        step: float | None = None,
        ratio: float = 1.0,
        largest: float = inf,
        *,
        unit: float | None = None,
    ) -> None:
        first = step or base or 0.0
        self._base = base or 0.0
        unit = unit or (1.0 if max(first, self._base) >= SMALLEST_MEMORY else MILLI)
        self._rungs, self._last_step = _ladder(self._base, min(first, largest), ratio, largest, unit)

    def at(self, value: float) -> float:
        """The lowest rung that is not below ``value``."""
        exact = without_noise(value)
        if exact <= self._base:
            return self._base
        if not self._last_step:
            return value
        last = self._rungs[-1]
        if exact <= last:
            return self._rungs[bisect_left(self._rungs, exact)]
        return last + ceil((exact - last) / self._last_step) * self._last_step

    def explain(self) -> str:
        """The first rungs as text."""
        rungs = [f"{rung:g}" for rung in self._rungs[:4]]
        more = f", then every {self._last_step:g}" if len(self._rungs) <= len(rungs) else ", ..."
        return f"rounded up to {', '.join(rungs)}{more}"


def _ladder(base: float, step: float, ratio: float, largest: float, unit: float) -> tuple[list[float], float]:
    """The rungs from ``base`` while the step grows, and the step that repeats after the last of them."""
    rungs = [base]
    # Stop before a rung could overflow to infinity.
    while ratio > 1.0 and step < largest and len(rungs) < MAX_RUNGS and rungs[-1] < 1e300 / ratio:
        rungs.append(_cleaned(rungs[-1] + step, unit))
        # A step never shrinks, even if truncation removes what the ratio adds.
        step = min(max(step, _floored(step * ratio, unit)), largest)
    return rungs, step


def _floored(step: float, unit: float) -> float:
    """The largest multiple of ``unit`` that is not above ``step``.

    >>> _floored(0.5625, 0.001), _floored(22.5, 1.0)
    (0.562, 22.0)
    """
    return _cleaned(floor(step / unit * (1 + NOISE)) * unit, unit)


def _cleaned(value: float, unit: float) -> float:
    """``value`` without the float noise of adding thousandths; whole bytes have none."""
    return round(value, 9) if unit < 1 else value
