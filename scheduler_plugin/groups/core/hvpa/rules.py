"""The numbers of an Hvpa's rules: least changes (S1.9), the maintenance window, and limits that follow requests."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, time
from fractions import Fraction
from math import floor
from typing import Final

from protocol.field_errors import shown
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


_TIME: Final = re.compile(r"([0-9]{2})([0-9]{2})([0-9]{2})([+-])([0-9]{2})([0-9]{2})")
_DAY: Final = 24 * 3600


def parse_maintenance_time(text: object) -> time:
    """The time of day in UTC. Raises ``ValueError`` for anything but ``HHMMSS`` and a numeric zone.

    >>> parse_maintenance_time("220000+0100")
    datetime.time(21, 0)
    """
    match = _TIME.fullmatch(text) if isinstance(text, str) else None
    if match is None or match[1] > "23" or max(match[2], match[3], match[6]) > "59" or match[5] > "23":
        raise ValueError(f'expected a time of day with a zone such as "220000+0100", got {shown(text)}')
    hour, minute, second, zone_hours, zone_minutes = (int(match[group]) for group in (1, 2, 3, 5, 6))
    zone = (zone_hours * 3600 + zone_minutes * 60) * (1 if match[4] == "+" else -1)
    # The modulo wraps an offset that crosses midnight.
    seconds = (hour * 3600 + minute * 60 + second - zone) % _DAY
    return time(seconds // 3600, seconds // 60 % 60, seconds % 60)


@dataclass(frozen=True, slots=True)
class MaintenanceWindow:
    """From ``begin`` to ``end`` (UTC) of every day, both included; over midnight if ``end`` is before ``begin``."""

    begin: time
    end: time

    def contains(self, now: datetime) -> bool:
        """Return True if ``now``, an aware time, is within the window. A begun second counts as the whole one."""
        # Whole seconds, so that the last second of the window is inside.
        at = now.astimezone(UTC).time().replace(microsecond=0)
        if self.begin <= self.end:
            return self.begin <= at <= self.end
        # This window spans midnight.
        return at >= self.begin or at <= self.end

    def __str__(self) -> str:
        return f"{self.begin:%H:%M:%S} to {self.end:%H:%M:%S} UTC"


def scaled_limit(limit: int | None, old_request: int | None, new_request: int, gap: ChangeParams = UNSET) -> int | None:
    """The limit for a new request; None (or 0) is no limit, and stays none.

    A limit that equals its request, or is set without one, becomes the new request. Otherwise it keeps its ratio, or
    with a ``gap`` stays above the request by the larger of its value and its percentage.
    """
    if not limit:
        return None
    if not old_request or old_request == limit:
        return new_request
    above = gap.parts(new_request)
    if above:
        return new_request + floor(max(above))
    # Never below the request: the API server refuses such a pod.
    return max(new_request, floor(Fraction(limit * new_request, old_request)))
