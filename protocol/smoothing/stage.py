"""The interface of every stage of a smoothing policy (S0.7).

Rules that hold here:

- A stage turns the value that reaches it into the value it passes on. ``now`` is an argument; it never asks a clock.
- Values have the unit of the policy's resource: vCPUs for CPU, bytes for memory. Times are in seconds.
- Values are zero or more and at most ``LARGEST``: the pipeline caps what goes into a stage and what comes out.
- A step costs O(log n) or less and a stage's memory is bounded, however many samples come.
- Explanations are returned, never logged, and made only on request.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from math import inf
from typing import ClassVar, Final

import msgspec

from protocol.units import Instant

LARGEST: Final = 1e30
"""More vCPUs or bytes than anything has, and few enough that no stage's arithmetic overflows a float."""


UNSTEADY: Final = Instant(-inf)
"""Of a stage whose next result may differ although its input stays the same."""

FOR_EVER: Final = Instant(inf)


class Sample(msgspec.Struct, frozen=True, gc=False):
    """The need at a moment, and the VM's size then (None if unknown)."""

    value: float
    current: float | None = None


class StageExplanation(msgspec.Struct, frozen=True):
    """The effect of one stage on the last sample: its name, the value before and after it, and why."""

    stage: str
    before: float
    after: float
    reason: str


class Stage(ABC):
    """One step of a policy, with its state."""

    # Each VM has a pipeline of stages; slots save memory only if every base class has them.
    __slots__ = ()
    name: ClassVar[str]
    delays_growth: ClassVar[bool] = False
    """Whether the stage can pass on less than what is needed right now; such stages are refused for memory."""

    @abstractmethod
    def step(self, now: Instant, value: float, sample: Sample) -> float:
        """The value to pass on; ``now`` never goes back."""

    def steady_until(self, now: Instant) -> Instant:  # noqa: ARG002 - a stage that does not know is never steady
        """The time before which steps with the input of the last one, at ``now``, return the same and could be left out
        but for the latest of them.
        """
        return UNSTEADY

    @abstractmethod
    def explain(self) -> str:
        """Say why the last step returned its value."""


class Curve(Stage):
    """A stage without state: a function of the value alone, that never falls where its input rises."""

    __slots__ = ()

    @abstractmethod
    def at(self, value: float) -> float:
        """The function."""

    def step(self, now: Instant, value: float, sample: Sample) -> float:  # noqa: ARG002 - a curve knows no time
        """The function of the value that reaches the stage."""
        return self.at(value)

    def steady_until(self, now: Instant) -> Instant:  # noqa: ARG002 - a curve knows no time
        """For ever: the same input gives the same value."""
        return FOR_EVER
