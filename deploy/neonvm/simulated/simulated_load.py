"""The load of a simulated guest over time (pure).

Demand is constant between two steps, so a model can be advanced to any time exactly. Before the first step, the demand
of the first step holds.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import ceil, inf, nextafter
from typing import Final

from deploy.neonvm.simulated.recording_rows import RecordingRows
from protocol.units import Bytes, Seconds

IDLE_CPU: Final = 0.05
"""Average running tasks of an idle database."""
IDLE_MEMORY: Final = Bytes(48 * 1024**2)
"""Memory in use of an idle database."""


class LoadError(ValueError):
    """A load is invalid; the message says why."""


@dataclass(frozen=True, slots=True)
class Demand:
    """Demand of a guest's load: runnable tasks, and memory in use."""

    cpu: float
    mem: Bytes

    @property
    def is_idle(self) -> bool:
        """True if the CPU demand is at most ``IDLE_CPU``."""
        return self.cpu <= IDLE_CPU


@dataclass(frozen=True, slots=True)
class LoadStep:
    """The demand from ``at`` on, in seconds since the guest's start."""

    at: Seconds
    demand: Demand


@dataclass(frozen=True, slots=True)
class Load:
    """Steps in order of time, repeated every ``period`` seconds if given. Raises ``LoadError``."""

    steps: Sequence[LoadStep]
    period: Seconds | None = None

    def __post_init__(self) -> None:
        times = [step.at for step in self.steps]
        if not times or any(later <= earlier for earlier, later in pairwise(times)):
            raise LoadError("a load needs at least one step, and each step must be later than the one before")
        if self.period is not None and self.period <= times[-1]:
            raise LoadError(f"a period of {self.period:g} s is too short: the last step is at {times[-1]:g} s")

    @classmethod
    def constant(cls, cpu: float, mem: Bytes) -> Load:
        """A constant demand."""
        return cls((LoadStep(Seconds(0.0), Demand(cpu, mem)),))

    def at(self, age: Seconds) -> Demand:
        """The demand when the guest's age is ``age`` (>= 0)."""
        return self.steps[self._index(self._phase(age))].demand

    def next_change(self, age: Seconds) -> Seconds | None:
        """The age at which the next step begins; None if there is none."""
        phase = self._phase(age)
        following = bisect_right(self.steps, phase, key=lambda step: step.at)
        if following < len(self.steps):
            return _after(age, self.steps[following].at - phase)
        return None if self.period is None else _after(age, self.period - phase)

    def next_work(self, age: Seconds) -> Seconds | None:
        """The first age from ``age`` on at which the load is not idle; None if it stays idle."""
        at: Seconds | None = age
        # Twice each step, because a change may be lost in rounding.
        for _ in range(2 * len(self.steps) + 1):
            if at is None or not self.at(at).is_idle:
                return at
            at = self.next_change(at)
        return None

    def _index(self, phase: float) -> int:
        return max(0, bisect_right(self.steps, phase, key=lambda step: step.at) - 1)

    def _phase(self, age: Seconds) -> float:
        return age if self.period is None else age % self.period


def _after(age: Seconds, span: float) -> Seconds:
    """``age + span``, but later than ``age`` even if ``span`` is lost in rounding, so that the model advances."""
    return Seconds(max(age + span, nextafter(age, inf)))


def recorded_load(recorded: RecordingRows) -> Load:
    """The load of a recording. It repeats after its last step, which is as long as the one before.

    Raises ``LoadError`` and ``RecordingError``.
    """
    steps = [
        LoadStep(Seconds(at), Demand(cores, Bytes(ceil(mem)) if recorded.has_memory else IDLE_MEMORY))
        for at, cores, mem in recorded.rows
    ]
    if len(steps) < 2:
        return Load(steps)
    return Load(steps, Seconds(2 * steps[-1].at - steps[-2].at))
