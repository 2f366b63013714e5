"""How each family of modes answers the wishes: each wish gets the value to write, or the rule that keeps it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction

from scheduler_plugin.groups.core.hvpa.gates import Gates
from scheduler_plugin.groups.core.hvpa.modes import HorizontalDelta, VerticalDelta, allowed
from scheduler_plugin.groups.core.hvpa.weights import (
    HORIZONTAL_ONLY,
    VERTICAL_ONLY,
    away_from,
    effective_weight,
    vpa_weight,
    weighted,
    weighted_replicas,
)
from scheduler_plugin.groups.core.hvpa.wishes import Recommendation, VerticalWishes
from scheduler_plugin.groups.core.workload import Rule, Workload


@dataclass(frozen=True, slots=True)
class GatedRecommendation:
    """A wish with the value to write and ``why``, and the rule that keeps it from being written; None if it is.

    ``message`` says more of that rule.
    """

    wish: Recommendation
    why: str
    rule: Rule | None = None
    message: str = ""


def gated(gates: Gates, wish: Recommendation, why: str) -> GatedRecommendation:
    """The wish with the gate that holds it back, if one does."""
    rule = gates.rule(wish)
    return GatedRecommendation(wish, why, rule, gates.message(wish, rule) if rule else "")


def by_mode(
    gates: Gates, workload: Workload, horizontal: Recommendation | None, vertical: VerticalWishes
) -> list[GatedRecommendation]:
    """HPA preferred, HPA biased, VPA biased and mixed: of the wishes that may go now, the mode chooses."""
    wishes = (*([] if horizontal is None else [horizontal]), *vertical.wishes)
    why = f"mode {gates.spec.mode}"
    answers = [gated(gates, wish, why) for wish in wishes]
    free = [answer.wish for answer in answers if answer.rule is None]
    spec, current = gates.spec, workload.replicas
    desired = next((wish.value for wish in free if wish.resource is None), current)
    deltas = [_delta(gates, workload, wish) for wish in free if wish.resource]
    may = allowed(spec.mode, spec.mixed, HorizontalDelta(current, desired, spec.replicas), deltas)

    def chosen(wish: Recommendation) -> bool:
        if gates.is_urgent(wish):  # more replicas would run out of memory like those that did
            return True
        if wish.resource is None:
            return may.horizontal
        return may.up if wish.grows else may.down

    return [
        # A gate's rule says more than the mode, so it is reported instead.
        answer if answer.rule or chosen(answer.wish) else GatedRecommendation(answer.wish, why, Rule.POLICY, why)
        for answer in answers
    ]


def _delta(gates: Gates, workload: Workload, wish: Recommendation) -> VerticalDelta:
    container = workload.container(wish.container)
    limit = container.limits[wish.resource] if container and wish.resource else None
    y = gates.spec.mixed.y[wish.resource] if wish.resource else None
    return VerticalDelta(
        wish.value - wish.now, 0 if y is None else y.value, limit is not None and wish.wanted > limit.value
    )


def by_weight(
    gates: Gates, workload: Workload, horizontal: Recommendation | None, vertical: VerticalWishes
) -> list[GatedRecommendation]:
    """Weight-based scaling: each wish goes the part of its way that the weight at this number of replicas gives it.

    A wish for other replicas borrows the neighbour's weight only if it is written: one that waits must not starve the
    sizes.
    """
    current = workload.replicas
    weight = vpa_weight(gates.spec.intervals, gates.spec.replicas, current, current)
    if horizontal is None:
        # Without a wish for replicas there is no neighbour whose weight could be borrowed.
        return [_weighted_size(gates, wish, weight, current) for wish in vertical.wishes]
    freed = vpa_weight(gates.spec.intervals, gates.spec.replicas, current, horizontal.wanted)
    # Neither axis can move: the interval is vertical only, and the sizes are at their bounds.
    trapped = freed == VERTICAL_ONLY and vertical.exhausted(horizontal.grows)
    count = _weighted_count(gates, horizontal, HORIZONTAL_ONLY if trapped else freed)
    # While the count is held back, the sizes keep the weight of the present interval.
    applied = weight if count.rule else freed
    return [count, *(_weighted_size(gates, wish, applied, current) for wish in vertical.wishes)]


def _weighted_count(gates: Gates, wish: Recommendation, vpa: Fraction) -> GatedRecommendation:
    value = gates.spec.replicas.clamp(weighted_replicas(wish.now, wish.wanted, vpa))
    # The horizontal weight is what the vertical one leaves.
    return _answered(gates, wish.at(value), 1 - vpa)


def _weighted_size(gates: Gates, wish: Recommendation, weight: Fraction, replicas: int) -> GatedRecommendation:
    if gates.is_urgent(wish):
        # A container that ran out of memory gets all of what it wants, whatever the interval says.
        weight = VERTICAL_ONLY
    applied = effective_weight(weight, replicas, gates.spec.replicas, wish.grows)
    return _answered(gates, wish.at(away_from(wish.now, weighted(wish.now, wish.wanted, applied))), applied)


def _answered(gates: Gates, wish: Recommendation, weight: Fraction) -> GatedRecommendation:
    why = f"weight {float(weight):g}"
    # Rounded to the present value: the weight alone leaves nothing to write.
    return GatedRecommendation(wish, why, Rule.WEIGHT, why) if wish.value == wish.now else gated(gates, wish, why)


def written(answers: Iterable[GatedRecommendation]) -> list[Recommendation]:
    """The wishes that are written."""
    return [answer.wish for answer in answers if answer.rule is None]
