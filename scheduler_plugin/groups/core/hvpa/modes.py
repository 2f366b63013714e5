"""Modes that choose between horizontal and vertical scaling (S1.2-S1.4), and weights by replica count (S1.5-S1.7).

A mode considers only changes that could be written now: one that waits for a window must not block the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import ceil, floor
from typing import Final

from scheduler_plugin.groups.core.hvpa.gates import GatedChange, Gates, ProposedChange, VerticalProposals, gated
from scheduler_plugin.groups.core.hvpa.spec import Exact, HvpaMode, Interval, Mixed, Preference
from scheduler_plugin.groups.core.workload import ReplicaBounds, Rule, Workload


def by_mode(
    gates: Gates, workload: Workload, horizontal: ProposedChange | None, vertical: VerticalProposals
) -> list[GatedChange]:
    """HPA preferred, HPA biased, VPA biased and mixed mode: choose among the changes that no gate withholds."""
    proposals = (*([] if horizontal is None else [horizontal]), *vertical.proposals)
    why = f"mode {gates.spec.mode}"
    outcomes = [gated(gates, proposal, why) for proposal in proposals]
    free = [outcome.proposal for outcome in outcomes if outcome.rule is None]
    spec, current = gates.spec, workload.replicas
    desired = next((proposal.value for proposal in free if proposal.resource is None), current)
    deltas = [_delta(gates, workload, proposal) for proposal in free if proposal.resource]
    may = allowed(spec.mode, spec.mixed, (current, desired), spec.replicas, deltas)

    def chosen(proposal: ProposedChange) -> bool:
        if gates.is_urgent(proposal):  # more replicas would run out of memory too
            return True
        if proposal.resource is None:
            return may.horizontal
        return may.up if proposal.grows else may.down

    return [
        # A gate's rule is more specific than the mode.
        outcome if outcome.rule or chosen(outcome.proposal) else GatedChange(outcome.proposal, why, Rule.POLICY, why)
        for outcome in outcomes
    ]


def _delta(gates: Gates, workload: Workload, proposal: ProposedChange) -> VerticalDelta:
    container = workload.container(proposal.container)
    limit = container.limits[proposal.resource] if container and proposal.resource else None
    y = gates.spec.mixed.y[proposal.resource] if proposal.resource else None
    return VerticalDelta(
        proposal.value - proposal.present,
        0 if y is None else y.value,
        limit is not None and proposal.desired > limit.value,
    )


@dataclass(frozen=True, slots=True)
class VerticalDelta:
    """One vertical change (signed), its threshold ``y``, and whether the desired size is above the limit."""

    change: int
    y: int = 0
    over_limit: bool = False


@dataclass(frozen=True, slots=True)
class Allowed:
    """Kinds of changes that the mode allows: of the replica count, and growing and shrinking of sizes."""

    horizontal: bool
    up: bool
    down: bool


_HORIZONTAL: Final = Allowed(horizontal=True, up=False, down=False)
_VERTICAL: Final = Allowed(horizontal=False, up=True, down=True)
_NONE: Final = Allowed(horizontal=False, up=False, down=False)


def allowed(
    mode: HvpaMode, mixed: Mixed, replicas: tuple[int, int], bounds: ReplicaBounds, vertical: Sequence[VerticalDelta]
) -> Allowed:
    """Kinds of changes that ``mode`` allows; ``replicas`` are the current and the desired count."""
    current, desired = replicas
    scales = desired != current
    if mode is HvpaMode.HPA_PREFERRED:
        if scales:
            return _HORIZONTAL
        # At a bound of the replica count only sizes can change.
        return Allowed(False, up=current >= bounds.max, down=current <= bounds.min)
    # Nothing to choose.
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


def by_weight(
    gates: Gates, workload: Workload, horizontal: ProposedChange | None, vertical: VerticalProposals
) -> list[GatedChange]:
    """Weight-based mode: apply each recommendation in proportion to its weight at this replica count.

    Sizes use the weight of the neighbouring interval only if the change of replicas is written.
    """
    current = workload.replicas
    weight = vpa_weight(gates.spec.intervals, gates.spec.replicas, current, current)
    if horizontal is None:
        # No change of replicas, so no neighbouring interval.
        return [_weighted_size(gates, proposal, weight, current) for proposal in vertical.proposals]
    freed = vpa_weight(gates.spec.intervals, gates.spec.replicas, current, horizontal.desired)
    # Vertical only, but a size is at its bound: scale horizontally, or nothing could change.
    trapped = freed == VERTICAL_ONLY and any(proposal.grows is horizontal.grows for proposal in vertical.at_bounds)
    count = _weighted_count(gates, horizontal, HORIZONTAL_ONLY if trapped else freed)
    # While the count waits, sizes use the present interval's weight, so that they are not blocked.
    applied = weight if count.rule else freed
    return [count, *(_weighted_size(gates, proposal, applied, current) for proposal in vertical.proposals)]


def _weighted_count(gates: Gates, proposal: ProposedChange, vpa: Fraction) -> GatedChange:
    value = gates.spec.replicas.clamp(weighted_replicas(proposal.present, proposal.desired, vpa))
    # The horizontal weight is the rest.
    return _gated_by_weight(gates, proposal.at(value), 1 - vpa)


def _weighted_size(gates: Gates, proposal: ProposedChange, weight: Fraction, replicas: int) -> GatedChange:
    if gates.is_urgent(proposal):
        # After an OOM kill the full recommendation applies.
        weight = VERTICAL_ONLY
    applied = effective_weight(weight, replicas, gates.spec.replicas, proposal.grows)
    return _gated_by_weight(
        gates, proposal.at(away_from(proposal.present, weighted(proposal.present, proposal.desired, applied))), applied
    )


def _gated_by_weight(gates: Gates, proposal: ProposedChange, weight: Fraction) -> GatedChange:
    why = f"weight {float(weight):g}"
    # The weight leaves nothing to write.
    return (
        GatedChange(proposal, why, Rule.WEIGHT, why)
        if proposal.value == proposal.present
        else gated(gates, proposal, why)
    )


VERTICAL_ONLY: Final = Fraction(1)
HORIZONTAL_ONLY: Final = Fraction(0)


def stages(
    bounds: ReplicaBounds, first_end: int | None, second_end: int | None, weights: Sequence[Fraction]
) -> tuple[Interval, ...]:
    """Three stages as intervals: below ``first_end``, up to ``second_end``, and above (S1.5, S1.6).

    Without ``first_end`` there is no first stage, without ``second_end`` no third. A first stage that would end before
    it begins applies to ``bounds.min`` only.
    """
    first, second, third = weights
    middle = Interval(second, first_end, second_end)
    before = [] if first_end is None else [Interval(first, bounds.min, max(bounds.min, first_end - 1))]
    after = [] if second_end is None or second_end >= bounds.max else [Interval(third, second_end + 1, bounds.max)]
    return (*before, middle, *after)


def vpa_weight(intervals: Sequence[Interval], bounds: ReplicaBounds, current: int, desired: int) -> Fraction:
    """Weight of vertical recommendations when scaling from ``current`` to ``desired``; 0 without intervals."""
    spans = [(interval.within(bounds), interval.weight) for interval in intervals]
    # `min` returns the first: the first interval with this count, or the nearest to a gap.
    nearest = min(spans, key=lambda span: _distance(span[0], current), default=None)
    if nearest is None:
        return HORIZONTAL_ONLY
    # Weight 1 would never change replicas, so take the weight of the next interval in that direction.
    if nearest[1] < VERTICAL_ONLY or desired == current:
        return nearest[1]
    ways = [
        (span, weight)
        for span, weight in spans
        if weight < VERTICAL_ONLY and (span[1] > current if desired > current else span[0] < current)
    ]
    neighbour = min(ways, key=lambda span: _distance(span[0], current), default=None)
    return VERTICAL_ONLY if neighbour is None else neighbour[1]


def _distance(span: tuple[int, int], count: int) -> int:
    start, last = span
    return max(start - count, count - last, 0)


def effective_weight(weight: Fraction, current: int, bounds: ReplicaBounds, growing: bool) -> Fraction:
    """``weight``, or 1 when growing at the maximum replica count, where only sizes can grow."""
    return VERTICAL_ONLY if growing and current >= bounds.max else weight


def weighted(current: Exact, target: Exact, weight: Fraction) -> Fraction:
    """The exact number at the fraction ``weight`` of the way from ``current`` to ``target``."""
    return current + (target - current) * weight


def away_from(current: int, exact: Fraction) -> int:
    """``exact`` rounded away from ``current``, so that no step is lost."""
    return ceil(exact) if exact > current else floor(exact)


def weighted_replicas(current: int, desired: int, vpa: Fraction) -> int:
    """Replica count with the horizontal weight ``1 - vpa``: rounded up when growing, down when shrinking.

    >>> weighted_replicas(5, 4, Fraction("0.6")), weighted_replicas(3, 10, Fraction("0.6"))
    (4, 6)
    """
    return away_from(current, weighted(current, desired, 1 - vpa))
