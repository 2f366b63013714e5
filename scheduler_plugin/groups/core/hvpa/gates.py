"""What holds a wish back now: update mode, pods that differ from what was ordered, delay, maintenance window and least
change, in this order (S1.8, S1.9, S1.12); and how each family of modes answers the wishes that may go.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from math import ceil

from protocol.units import Seconds
from scheduler_plugin.groups import texts
from scheduler_plugin.groups.core.hvpa.rules import (
    DEFAULT_MIN_CHANGE,
    HORIZONTAL_ONLY,
    VERTICAL_ONLY,
    VerticalDelta,
    allowed,
    away_from,
    effective_weight,
    is_enough,
    threshold,
    vpa_weight,
    weighted,
    weighted_replicas,
)
from scheduler_plugin.groups.core.hvpa.spec import DirectionRules, HvpaSpec, ScalingTimes, UpdateMode
from scheduler_plugin.groups.core.hvpa.wishes import Recommendation, VerticalWishes, enough_since
from scheduler_plugin.groups.core.workload import Rule, Workload


def delay_passed(last: datetime | None, now: datetime, delay: Seconds) -> bool:
    """Return True if ``delay`` has passed since ``last``; equality passes, and a time in the future proves nothing."""
    # A time in the future comes from another node's clock; waiting for it could take for ever.
    return last is None or last > now or (now - last).total_seconds() >= delay


@dataclass(frozen=True, slots=True)
class Gates:
    """Decides for one moment. A container in ``out_of_memory`` gets more memory without delay and least change.

    ``pods_differ`` says how pods differ from what was ordered while that is waited for.
    """

    spec: HvpaSpec
    memory: ScalingTimes
    now: datetime
    out_of_memory: frozenset[str] = frozenset()
    pods_differ: str = ""

    def rules(self, wish: Recommendation) -> DirectionRules:
        """The rules for the axis and direction of ``wish``."""
        axis = self.spec.vertical if wish.resource else self.spec.horizontal
        return axis.up if wish.grows else axis.down

    def is_urgent(self, wish: Recommendation) -> bool:
        """Return True if the wish is for the memory that ran out."""
        return wish.container in self.out_of_memory and wish.resource == "memory" and wish.grows

    def rule(self, wish: Recommendation) -> Rule | None:
        """By which rule the change from ``wish.current`` to ``wish.value`` is held back; None if it may go."""
        rules, urgent = self.rules(wish), self.is_urgent(wish)
        if rules.mode is UpdateMode.OFF:
            return Rule.UPDATE_MODE
        # While pods differ, recommendations still describe the old ones.
        if not urgent and self.pods_differ:
            return Rule.PODS_DIFFER
        if not urgent and not delay_passed(self._last(wish), self.now, rules.delay):
            return Rule.DELAY
        # Off and the maintenance window hold for urgent wishes as well.
        if rules.mode is UpdateMode.MAINTENANCE_WINDOW and not (
            self.spec.window is not None and self.spec.window.contains(self.now)
        ):
            return Rule.MAINTENANCE_WINDOW
        if not urgent and not is_enough(wish.now, wish.value, self._least(wish)):
            return Rule.MIN_CHANGE
        # Settling is reported as a delay, so that people see a single time to wait for.
        return None if self._is_settled(wish) else Rule.DELAY

    def message(self, wish: Recommendation, rule: Rule) -> str:
        """Message for people when ``rule`` holds ``wish`` back."""
        if rule is Rule.DELAY:
            return texts.UNTIL.format(time=self._until(wish).astimezone(UTC))
        if rule is Rule.MAINTENANCE_WINDOW:
            return texts.UNTIL_WINDOW.format(window=self.spec.window) if self.spec.window else texts.NO_WINDOW
        if rule is Rule.MIN_CHANGE:
            return texts.SMALL_CHANGE.format(least=wish.shown(ceil(self._least(wish))))
        if rule is Rule.PODS_DIFFER:
            return texts.PODS_DIFFER.format(difference=self.pods_differ)
        return texts.MODE_OFF

    def _until(self, wish: Recommendation) -> datetime:
        """The time when neither delay nor settling holds the wish back, if less is enough until then."""
        last, delay = self._last(wish) or self.now, timedelta(seconds=self.rules(wish).delay)
        # Only shrinking settles.
        if wish.grows or not self.spec.settle:
            return last + delay
        settled = enough_since(self.memory, wish, self.now) + timedelta(seconds=self.spec.settle)
        return max(last + delay, settled)

    def _is_settled(self, wish: Recommendation) -> bool:
        since = enough_since(self.memory, wish, self.now)
        return wish.grows or delay_passed(since, self.now, self.spec.settle)

    def _last(self, wish: Recommendation) -> datetime | None:
        return self.memory.last_up if wish.grows else self.memory.last_down

    def _least(self, wish: Recommendation) -> Fraction:
        if wish.resource is None:
            # Any change of the replicas is worth a write.
            return Fraction(0)
        params = self.rules(wish).min_change[wish.resource]
        return threshold(params, wish.now, DEFAULT_MIN_CHANGE[wish.resource].value)


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
    may = allowed(spec.mode, spec.mixed, (current, desired), spec.replicas, deltas)

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
