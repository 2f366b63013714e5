"""The interface of every stage of a smoothing policy (S0.7).

Rules that hold here:

- A stage maps its input value to an output value. ``now`` is an argument; a stage never reads a clock.
- Values are in the unit of the policy's resource: vCPUs for CPU, bytes for memory. Times are in seconds.
- Values are at least zero and at most ``LARGEST``: the pipeline caps the input and output of each stage.
- A step takes at most O(log n) time, and a stage's memory is bounded, regardless of the number of samples.
- Explanations are returned, never logged, and created only on request.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar, Final

import msgspec

from protocol.units import Instant

LARGEST: Final = 1e30
"""More vCPUs or bytes than exist, but few enough that no stage's arithmetic overflows a float."""


class Sample(msgspec.Struct, frozen=True, gc=False):
    """The need at one time, and the VM's size at that time (None if unknown)."""

    value: float
    current: float | None = None


class StageExplanation(msgspec.Struct, frozen=True):
    """The effect of one stage on the last sample: its name, its input and output, and the reason."""

    stage: str
    before: float
    after: float
    reason: str


class Stage(ABC):
    """One step of a policy, with its state."""

    # Each VM has pipelines of stages; slots save memory only if every base class has them.
    __slots__ = ()
    name: ClassVar[str]
    delays_growth: ClassVar[bool] = False
    """True if the output may be below the current need; such stages are not allowed for memory."""

    @abstractmethod
    def step(self, now: Instant, value: float, sample: Sample) -> float:
        """The output for the input ``value``; ``now`` never decreases."""

    @abstractmethod
    def explain(self) -> str:
        """Say why the last step returned its value."""


class Curve(Stage):
    """A stateless stage: a non-decreasing function of its input."""

    __slots__ = ()

    @abstractmethod
    def at(self, value: float) -> float:
        """The function's value for the input ``value``."""

    def step(self, now: Instant, value: float, sample: Sample) -> float:  # noqa: ARG002 - a curve is stateless
        """See ``Stage``."""
        return self.at(value)
