"""How large a change must be to be worth a write: an absolute value, a percentage of the request, or both (S1.9)."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Final

from protocol.units import Amount, Bytes, MilliCpu
from scheduler_plugin.groups.core.workload import Resource

Exact = int | Fraction
"""A number without rounding errors."""

DEFAULT_MIN_CHANGE: Final[dict[Resource, Amount]] = {"cpu": MilliCpu(200), "memory": Bytes(200_000_000)}
"""The least change if the object has neither value nor percentage."""


@dataclass(frozen=True, slots=True)
class ChangeParams:
    """An absolute amount, in thousandths of a vCPU or bytes, and a percentage; each optional."""

    value: Exact | None = None
    percentage: Fraction | None = None

    def parts(self, of: Exact) -> list[Fraction]:
        """Each that is given, as an amount; the percentage is of ``of``."""
        absolute = [] if self.value is None else [Fraction(self.value)]
        return absolute if self.percentage is None else [*absolute, of * self.percentage / 100]


UNSET: Final = ChangeParams()
"""Neither a value nor a percentage."""


@dataclass(frozen=True, slots=True)
class ResourceChangeParams:
    """``ChangeParams`` for each resource."""

    cpu: ChangeParams = UNSET
    memory: ChangeParams = UNSET

    def __getitem__(self, resource: Resource) -> ChangeParams:
        return self.cpu if resource == "cpu" else self.memory


NO_PARAMS: Final = ResourceChangeParams()
"""Nothing given for any resource."""


def threshold(params: ChangeParams, current: Exact, default: Exact) -> Fraction:
    """The least change from ``current`` that counts: the smaller of both, the one that is given, or the default.

    A container without a request has a percentage of nothing: any change counts.
    """
    parts = params.parts(current)
    return min(parts) if parts else Fraction(default)


def is_enough(current: Exact, new: Exact, least: Fraction) -> bool:
    """Return True if the change from ``current`` to ``new`` reaches ``least``; equality does."""
    return abs(Fraction(new) - current) >= least
