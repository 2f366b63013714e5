"""Rules of an Hvpa: least changes (S1.9), the maintenance window, limits that follow requests; the modes that choose
one direction (S1.2-S1.4), and weights by the number of replicas (S1.5-S1.7).

Only wishes that could go through now take part in a mode: one that waits for a window must not starve the other.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, time
from enum import StrEnum
from fractions import Fraction
from math import ceil, floor
from typing import Final

from protocol.field_errors import shown
from protocol.units import Amount, Bytes, MilliCpu
from scheduler_plugin.groups.core.workload import ReplicaBounds, Resource, ResourceList

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


class HvpaMode(StrEnum):
    """Way to combine both recommendations."""

    HPA_PREFERRED = "HpaPreferred"
    HPA_BIASED = "HpaBiased"
    VPA_BIASED = "VpaBiased"
    MIXED = "Mixed"
    WEIGHT_BASED = "WeightBased"
    EFFECTIVE_INTERVALS = "EffectiveIntervals"


class Preference(StrEnum):
    """The recommendation that mixed mode takes if both pass their thresholds."""

    HPA = "hpa"
    VPA = "vpa"


@dataclass(frozen=True, slots=True)
class Mixed:
    """Mixed mode's thresholds: ``x`` replicas and ``y`` of each resource, both to be exceeded, and the preference."""

    x: int = 1
    y: ResourceList = field(default=ResourceList(MilliCpu(200), Bytes(200_000_000)))
    preference: Preference = Preference.HPA


@dataclass(frozen=True, slots=True)
class VerticalDelta:
    """One vertical wish: its change (signed), the threshold ``y``, and whether the target is above the limit."""

    change: int
    y: int = 0
    over_limit: bool = False


@dataclass(frozen=True, slots=True)
class Allowed:
    """Wishes that may pass: horizontal ones, and vertical ones to grow and to shrink."""

    horizontal: bool
    up: bool
    down: bool


_HORIZONTAL: Final = Allowed(horizontal=True, up=False, down=False)
_VERTICAL: Final = Allowed(horizontal=False, up=True, down=True)
_NONE: Final = Allowed(horizontal=False, up=False, down=False)


def allowed(
    mode: HvpaMode, mixed: Mixed, replicas: tuple[int, int], bounds: ReplicaBounds, vertical: Sequence[VerticalDelta]
) -> Allowed:
    """The wishes that may pass; ``replicas`` from and to. Only for the modes that choose."""
    current, desired = replicas
    scales = desired != current
    if mode is HvpaMode.HPA_PREFERRED:
        if scales:
            return _HORIZONTAL
        # At a bound the HPA can go no further in that direction, so sizes take over.
        return Allowed(False, up=current >= bounds.max, down=current <= bounds.min)
    # Only one of the two wants something, so there is nothing to choose.
    if not (scales and vertical):
        return _HORIZONTAL if scales else _VERTICAL
    if mode is HvpaMode.MIXED:
        return _mixed(mixed, abs(desired - current), vertical)
    return _HORIZONTAL if mode is HvpaMode.HPA_BIASED else _VERTICAL


def _mixed(mixed: Mixed, change: int, vertical: Sequence[VerticalDelta]) -> Allowed:
    horizontal_passes = change > mixed.x
    vertical_passes = any(abs(delta.change) > delta.y or delta.over_limit for delta in vertical)
    if horizontal_passes and vertical_passes:
        return _HORIZONTAL if mixed.preference is Preference.HPA else _VERTICAL
    if horizontal_passes:
        return _HORIZONTAL
    return _VERTICAL if vertical_passes else _NONE


VERTICAL_ONLY: Final = Fraction(1)
HORIZONTAL_ONLY: Final = Fraction(0)


@dataclass(frozen=True, slots=True)
class Interval:
    """From ``start`` to ``last`` replicas, both included, vertical recommendations have ``weight`` (0 to 1).

    A missing end is that of the replica bounds.
    """

    weight: Fraction
    start: int | None = None
    last: int | None = None

    def within(self, bounds: ReplicaBounds) -> tuple[int, int]:
        """Its first and last count."""
        return (
            bounds.min if self.start is None else self.start,
            bounds.max if self.last is None else self.last,
        )


def stages(
    bounds: ReplicaBounds, first_end: int | None, second_end: int | None, weights: Sequence[Fraction]
) -> tuple[Interval, ...]:
    """The three stages as intervals: below ``first_end``, up to ``second_end``, and above it (S1.5, S1.6).

    A missing end makes its outer stage empty. A first stage that would end before it begins holds for ``bounds.min``.
    """
    first, second, third = weights
    middle = Interval(second, first_end, second_end)
    before = [] if first_end is None else [Interval(first, bounds.min, max(bounds.min, first_end - 1))]
    after = [] if second_end is None or second_end >= bounds.max else [Interval(third, second_end + 1, bounds.max)]
    return (*before, middle, *after)


def vpa_weight(intervals: Sequence[Interval], bounds: ReplicaBounds, current: int, desired: int) -> Fraction:
    """The weight of vertical recommendations at ``current`` replicas while ``desired`` are wished for.

    Where there is no interval at all, vertical recommendations have no weight.
    """
    spans = [(interval.within(bounds), interval.weight) for interval in intervals]
    # `min` keeps the first of equals: the first interval that contains the count, or the nearest one to a gap, wins.
    nearest = min(spans, key=lambda span: _distance(span[0], current), default=None)
    if nearest is None:
        return HORIZONTAL_ONLY
    # Weight 1 would never let replicas change, so such a wish takes the weight of the next interval in its direction.
    if nearest[1] < VERTICAL_ONLY or desired == current:
        return nearest[1]
    out = desired > current
    ways = [span for span in spans if span[1] < VERTICAL_ONLY and _leads(span[0], current, out)]
    neighbour = min(ways, key=lambda span: _distance(span[0], current), default=None)
    return VERTICAL_ONLY if neighbour is None else neighbour[1]


def _leads(span: tuple[int, int], current: int, out: bool) -> bool:
    return span[1] > current if out else span[0] < current


def _distance(span: tuple[int, int], count: int) -> int:
    start, last = span
    return max(start - count, count - last, 0)


def effective_weight(weight: Fraction, current: int, bounds: ReplicaBounds, growing: bool) -> Fraction:
    """``weight``, or 1 if only vertical growth is left."""
    # At the maximum of replicas there is no other way left to grow.
    return VERTICAL_ONLY if growing and current >= bounds.max else weight


def weighted(current: Exact, target: Exact, weight: Fraction) -> Fraction:
    """The point at ``weight`` of the way from ``current`` to ``target``, exactly."""
    return current + (target - current) * weight


def away_from(current: int, exact: Fraction) -> int:
    """The whole number at ``exact`` or next to it on the far side from ``current``: no step is rounded away."""
    return ceil(exact) if exact > current else floor(exact)


def weighted_replicas(current: int, desired: int, vpa: Fraction) -> int:
    """The count that the horizontal weight ``1 - vpa`` makes of a wish: rounded up when growing, down when shrinking.

    >>> weighted_replicas(5, 4, Fraction("0.6")), weighted_replicas(3, 10, Fraction("0.6"))
    (4, 6)
    """
    return away_from(current, weighted(current, desired, 1 - vpa))
