"""The load of a simulated guest over time (pure).

Demand is constant between two steps, so a model can be advanced to any time exactly. Before the first step, the demand
of the first step holds.
"""

from __future__ import annotations

import csv
import io
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import inf, nextafter
from typing import Final

from protocol.units import Bytes, QuantityError, Seconds

IDLE_CPU: Final = 0.05
"""Tasks of a database that nobody uses, on average."""


class LoadError(ValueError):
    """A load is not usable; the message says which line and why."""


@dataclass(frozen=True, slots=True)
class Demand:
    """Demand of the guest's work: tasks that could run at once, and memory in use."""

    cpu: float
    mem: Bytes

    @property
    def is_idle(self) -> bool:
        """True if it is no more than that of a database that nobody uses."""
        return self.cpu <= IDLE_CPU


@dataclass(frozen=True, slots=True)
class LoadStep:
    """The demand from ``at`` seconds after the guest's start on."""

    at: Seconds
    demand: Demand


@dataclass(frozen=True, slots=True)
class Load:
    """Steps in the order of time; with ``period`` they start over after this many seconds. Raises ``LoadError``."""

    steps: Sequence[LoadStep]
    period: Seconds | None = None

    def __post_init__(self) -> None:
        times = [step.at for step in self.steps]
        if not times or any(later <= earlier for earlier, later in pairwise(times)):
            raise LoadError("a load needs at least one step, and each step must be later than the one before")
        # The last step would never be reached.
        if self.period is not None and self.period <= times[-1]:
            raise LoadError(f"a load cannot start over after {self.period:g} s: its last step is at {times[-1]:g} s")

    @classmethod
    def constant(cls, cpu: float, mem: Bytes) -> Load:
        """The same demand for ever."""
        return cls((LoadStep(Seconds(0.0), Demand(cpu, mem)),))

    def at(self, age: Seconds) -> Demand:
        """The demand at this age of the guest (>= 0)."""
        return self.steps[self._index(self._phase(age))].demand

    def next_change(self, age: Seconds) -> Seconds | None:
        """The age at which the step after this one begins; None if no step follows."""
        phase = self._phase(age)
        following = bisect_right(self.steps, phase, key=lambda step: step.at)
        if following < len(self.steps):
            return _after(age, self.steps[following].at - phase)
        return None if self.period is None else _after(age, self.period - phase)

    def next_work(self, age: Seconds) -> Seconds | None:
        """The first age from this one on at which the load is not idle; None if it is idle for ever."""
        at: Seconds | None = age
        # Twice each step: a change that is lost in rounding takes another one.
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
    """``age + span``, later than ``age`` even if ``span`` is lost in rounding."""
    # A step that does not advance would keep the model in an endless loop.
    return Seconds(max(age + span, nextafter(age, inf)))


def parse_recording(text: str, *, repeat: bool) -> Load:
    """A load from a CSV with the columns ``seconds``, ``cpu`` (cores) and ``mem`` (a quantity). With ``repeat`` it
    starts over one step after its end, taking the last two lines' distance for the length of the last. Raises
    ``LoadError`` that names the line.
    """
    rows = csv.DictReader(io.StringIO(text))
    try:
        if not {"seconds", "cpu", "mem"} <= set(rows.fieldnames or ()):
            raise LoadError(f"a recording has the columns seconds, cpu and mem, not {', '.join(rows.fieldnames or ())}")
        steps = [_step(rows.line_num, row) for row in rows]
    except csv.Error as error:
        raise LoadError(f"line {rows.line_num} of the recording: {error}") from None
    if not repeat or len(steps) < 2:
        return Load(steps)
    # The last line has no length of its own, so it gets that of the one before.
    return Load(steps, Seconds(2 * steps[-1].at - steps[-2].at))


def _step(line: int, row: dict[str, str]) -> LoadStep:
    try:
        step = LoadStep(Seconds(float(row["seconds"])), Demand(float(row["cpu"]), Bytes.parse(row["mem"])))
    except (TypeError, ValueError, QuantityError) as error:
        raise LoadError(f"line {line} of the recording: {error}") from error
    # `float` also reads "nan" and "inf".
    if not (0 <= step.at < float("inf") and 0 <= step.demand.cpu < float("inf")):
        raise LoadError(f"line {line} of the recording: seconds and cpu must be zero or more")
    return step
