"""The modes that choose one direction: HPA preferred, HPA biased, VPA biased and mixed (S1.2-S1.4).

Only wishes that could go through now take part: a wish that waits for a window must not starve the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from protocol.units import Bytes, MilliCpu
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
class HorizontalDelta:
    """The current and the desired replicas (equal without a wish), and their bounds."""

    current: int
    desired: int
    bounds: ReplicaBounds


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


def allowed(mode: HvpaMode, mixed: Mixed, replicas: HorizontalDelta, vertical: Sequence[VerticalDelta]) -> Allowed:
    """The wishes that may pass. Only for the modes that choose."""
    scales, bounds = replicas.desired != replicas.current, replicas.bounds
    if mode is HvpaMode.HPA_PREFERRED:
        if scales:
            return _HORIZONTAL
        # At a bound the HPA can go no further in that direction, so sizes take over.
        return Allowed(False, up=replicas.current >= bounds.max, down=replicas.current <= bounds.min)
    # Only one of the two wants something, so there is nothing to choose.
    if not (scales and vertical):
        return _HORIZONTAL if scales else _VERTICAL
    if mode is HvpaMode.MIXED:
        return _mixed(mixed, abs(replicas.desired - replicas.current), vertical)
    return _HORIZONTAL if mode is HvpaMode.HPA_BIASED else _VERTICAL


def _mixed(mixed: Mixed, change: int, vertical: Sequence[VerticalDelta]) -> Allowed:
    horizontal_passes = change > mixed.x
    vertical_passes = any(abs(delta.change) > delta.y or delta.over_limit for delta in vertical)
    if horizontal_passes and vertical_passes:
        return _HORIZONTAL if mixed.preference is Preference.HPA else _VERTICAL
    if horizontal_passes:
        return _HORIZONTAL
    return _VERTICAL if vertical_passes else _NONE
