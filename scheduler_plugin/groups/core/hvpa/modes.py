"""Which recommendation applies: the modes that choose one direction (S1.2-S1.4), and weights by the number of replicas
(S1.5-S1.7).

Only wishes that could go through now take part: a wish that waits for a window must not starve the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from fractions import Fraction
from math import ceil, floor
from typing import Final

from protocol.units import Bytes, MilliCpu
from scheduler_plugin.groups.core.hvpa.rules import Exact
from scheduler_plugin.groups.core.workload import ReplicaBounds, ResourceList


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
