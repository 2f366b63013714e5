"""Recommended changes, and the gates that hold them back: update mode, pods that differ from the order, delay,
maintenance window and minimum change, in this order (S1.8, S1.9, S1.12).

- Measurements of an HPA are up to ``MEASURED_WITHIN`` old and may describe any state of the pods in that time.
- Decisions wait for pods that differ from the order, but not for ever.
- Effective intervals shrink only after less has been enough for a while. Growth never waits.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from math import ceil
from typing import Final

from protocol.units import Amount, Bytes, MilliCpu, Seconds
from scheduler_plugin.groups import texts
from scheduler_plugin.groups.core.hvpa.spec import (
    ChangeParams,
    ContainerPolicy,
    DirectionRules,
    Exact,
    HvpaSpec,
    PastPods,
    PodsMemory,
    Possible,
    ScalingTimes,
    Shrinking,
    UpdateMode,
)
from scheduler_plugin.groups.core.workload import (
    ContainerRecommendation,
    HorizontalRecommendation,
    Recommendations,
    Resource,
    Rule,
    RunningPods,
    SizedContainer,
    VerticalRecommendation,
    WithheldChange,
    Workload,
    amount,
    by_name,
)

MEASURED_WITHIN: Final = timedelta(seconds=90)
"""Metrics are up to 60 s old, and an HPA evaluates them every 15 s."""

PATIENCE: Final = timedelta(minutes=5)
"""How long decisions wait for differing pods: the initialisation period of the HPA controller."""

REFUSED_PATIENCE: Final = timedelta(minutes=1)
"""The same after a refused resize in place, when waiting helps little."""

POSSIBLE_FOR: Final = timedelta(days=1)
"""How long a refusal limits orders to what pods had then."""

MOST_PASTS: Final = 16


def followed(memory: PodsMemory, pods: RunningPods | None, now: datetime) -> PodsMemory:
    """The memory updated with the present pods. Future times prove nothing."""
    possible = tuple(limit for limit in memory.possible if timedelta(0) <= now - limit.at < POSSIBLE_FOR)
    if pods is None:
        return PodsMemory(possible=possible)
    since = memory.differ_since
    # Since the difference began; a future time is from another clock.
    since = None if not pods.difference else since if since is not None and since <= now else now
    updated = PodsMemory(_past(memory.past, pods, now), since, possible)
    # A refusal counts after the patience: the kubelet may still find room.
    if waits_for(updated, pods, now) or not pods.difference:
        return updated
    refused = {
        (container.name, resource): Possible(container.name, resource, amount.value, now)
        for container in pods.refused
        for resource, amount in container.sizes
    }
    # The newest refusal per resource counts.
    remaining = tuple(limit for limit in possible if (limit.container, limit.resource) not in refused)
    return PodsMemory(updated.past, since, (*remaining, *refused.values()))


def waits_for(memory: PodsMemory, pods: RunningPods | None, now: datetime) -> str:
    """The difference of the pods while decisions wait for it; else empty."""
    if pods is None or memory.differ_since is None:
        return ""
    patience = REFUSED_PATIENCE if pods.refused else PATIENCE
    return pods.difference if now - memory.differ_since < patience else ""


def _past(past: Sequence[PastPods], pods: RunningPods, now: datetime) -> tuple[PastPods, ...]:
    """The present pods, after those that a measurement may still describe."""
    before = past[-1] if past else None
    is_same = before is not None and (before.ready, before.sizes) == (pods.ready, pods.sizes)
    entries = [*past] if is_same else [*past, PastPods(now, pods.ready, pods.sizes)]
    # An entry ends when the next begins.
    ends = [later.since for later in entries[1:]]
    recent = [entry for entry, end in zip(entries, ends, strict=False) if timedelta(0) <= now - end < MEASURED_WITHIN]
    return (*recent, entries[-1])[-MOST_PASTS:]


def requested(sizes: Sequence[SizedContainer], container: str, resource: Resource) -> int:
    """Request of one container in pods of these sizes."""
    sized = by_name(sizes, container)
    amount = None if sized is None else sized.sizes[resource]
    return 0 if amount is None else amount.value


@dataclass(frozen=True, slots=True)
class Recommendation:
    """A current number (None: the container has no size), the wanted one, and the one to write (``value``).

    Replicas have neither ``container`` nor ``resource``.
    """

    current: int | None
    wanted: int
    value: int
    container: str = ""
    resource: Resource | None = None

    @property
    def now(self) -> int:
        """The current number; 0 if None."""
        return self.current or 0

    @property
    def grows(self) -> bool:
        """True if more is wanted."""
        return self.wanted > self.now

    @property
    def subject(self) -> str:
        """Its name in the status."""
        return f"{self.container}/{self.resource}" if self.resource else "replicas"

    def shown(self, value: int) -> str:
        """``value`` in human-readable units."""
        return str(value) if self.resource is None else str(amount(self.resource, value))

    @property
    def change(self) -> str:
        """The change to write, with the wanted number if different."""
        description = f"{self.subject}: {self.shown(self.now)} to {self.shown(self.value)}"
        return description if self.value == self.wanted else f"{description} of {self.shown(self.wanted)}"

    def at(self, value: int) -> Recommendation:
        """The same recommendation with ``value``."""
        return replace(self, value=value)

    def kept(self, rule: Rule, message: str = "") -> WithheldChange:
        """This recommendation as withheld by ``rule``."""
        if self.resource is None:
            return WithheldChange(self.subject, self.wanted, self.current, rule, message)
        current = None if self.current is None else amount(self.resource, self.current)
        return WithheldChange(self.subject, amount(self.resource, self.wanted), current, rule, message)


def replica_wish(
    spec: HvpaSpec, workload: Workload, recommended: HorizontalRecommendation | None
) -> Recommendation | None:
    """The HPA's recommendation within the bounds; None if nothing changes. Bounds apply without an HPA too."""
    wanted = spec.replicas.clamp(workload.replicas if recommended is None else recommended.desired)
    return None if wanted == workload.replicas else Recommendation(workload.replicas, wanted, wanted)


@dataclass(frozen=True, slots=True)
class VerticalWishes:
    """Recommended sizes, and those that only bounds keep from growing or shrinking."""

    wishes: tuple[Recommendation, ...]
    at_bounds: tuple[Recommendation, ...]


def vertical_wishes(spec: HvpaSpec, workload: Workload, recommendations: Recommendations) -> VerticalWishes:
    """The VPA's recommendation for each container, within minAllowed and maxAllowed."""
    wishes: list[Recommendation] = []
    at_bounds: list[Recommendation] = []
    for container, recommended in sized_containers(spec, workload, recommendations):
        for resource, target in recommended.target:
            policy = spec.policy(container.name)
            if resource not in policy.resources:
                continue
            request = container.sizes[resource]
            current = None if request is None else request.value
            wanted = within_policy(policy, container, resource, target.value)
            # Only the uncapped target shows that more was wanted.
            beyond = (recommended.uncapped[resource] or target).value
            if wanted != (current or 0):
                wishes.append(Recommendation(current, wanted, wanted, container.name, resource))
            elif within_policy(policy, container, resource, beyond) != beyond:
                at_bounds.append(Recommendation(current, beyond, wanted, container.name, resource))
    return VerticalWishes(tuple(wishes), tuple(at_bounds))


def within_policy(policy: ContainerPolicy, container: SizedContainer, resource: Resource, value: int) -> int:
    """The nearest request that the policy allows: within its bounds, and within a fixed limit."""
    # A fixed limit bounds the request too: the API server refuses a request above its limit.
    limit = None if policy.controls_limits else container.limits[resource]
    bounded = policy.bounds.clamp(resource, value)
    return bounded if limit is None else min(bounded, limit.value)


def is_sized(spec: HvpaSpec, container: str, resource: Resource) -> bool:
    """Return True if the group may size that resource of that container."""
    policy = spec.policy(container)
    return not policy.is_off and resource in policy.resources


def sized_containers(
    spec: HvpaSpec, workload: Workload, recommendations: Recommendations
) -> list[tuple[SizedContainer, ContainerRecommendation]]:
    """Containers with a recommendation that are not switched off."""
    vertical = recommendations.vertical or VerticalRecommendation()
    return [
        (container, recommended)
        for container in workload.containers
        if (recommended := vertical.container(container.name)) and not spec.policy(container.name).is_off
    ]


def at_most_needed(memory: ScalingTimes, wish: Recommendation) -> Recommendation:
    """The recommendation; a decrease no lower than the maximum need since less has been enough."""
    waiting = _known(memory, wish)
    # The maximum over that time, so that noise does not revert the change.
    return wish if waiting is None or wish.grows else wish.at(min(wish.now, max(wish.value, waiting.highest)))


def enough_since(memory: ScalingTimes, wish: Recommendation, now: datetime) -> datetime:
    """Since when less than the present number has been enough; a future time is now."""
    waiting = _known(memory, wish)
    # A time in the future comes from another clock.
    return now if waiting is None else min(waiting.since, now)


def with_waiting(memory: ScalingTimes, waiting: Iterable[Recommendation], now: datetime) -> ScalingTimes:
    """The memory with exactly these waiting decreases."""
    # Others are dropped, so a sample that needs the present size restarts the time.
    shrinking = tuple(Shrinking(wish.subject, enough_since(memory, wish, now), wish.value) for wish in waiting)
    return replace(memory, shrinking=shrinking)


def _known(memory: ScalingTimes, wish: Recommendation) -> Shrinking | None:
    return next((shrinking for shrinking in memory.shrinking if shrinking.subject == wish.subject), None)


DEFAULT_MIN_CHANGE: Final[dict[Resource, Amount]] = {"cpu": MilliCpu(200), "memory": Bytes(200_000_000)}
"""Minimum change if the object has neither value nor percentage."""


def threshold(params: ChangeParams, current: Exact, default: Exact) -> Fraction:
    """Minimum change from ``current``: the smaller of value and percentage, the one that is set, or the default."""
    # Without a request the percentage is 0: any change counts.
    parts = params.parts(current)
    return min(parts) if parts else Fraction(default)


def is_enough(current: Exact, new: Exact, least: Fraction) -> bool:
    """Return True if the change from ``current`` to ``new`` is at least ``least``."""
    return abs(Fraction(new) - current) >= least


def delay_passed(last: datetime | None, now: datetime, delay: Seconds) -> bool:
    """Return True if at least ``delay`` has passed since ``last``, or ``last`` is in the future."""
    # A future time is from another clock; waiting for it could take for ever.
    return last is None or last > now or (now - last).total_seconds() >= delay


@dataclass(frozen=True, slots=True)
class Gates:
    """Decides for one moment. A container in ``out_of_memory`` gets more memory without delay and minimum change."""

    spec: HvpaSpec
    memory: ScalingTimes
    now: datetime
    out_of_memory: frozenset[str] = frozenset()
    pods_differ: str = ""

    def rules(self, wish: Recommendation) -> DirectionRules:
        """Rules for the axis and direction of ``wish``."""
        axis = self.spec.vertical if wish.resource else self.spec.horizontal
        return axis.up if wish.grows else axis.down

    def is_urgent(self, wish: Recommendation) -> bool:
        """Return True if the recommendation is for memory that ran out."""
        return wish.container in self.out_of_memory and wish.resource == "memory" and wish.grows

    def held(self, wish: Recommendation) -> tuple[Rule, str] | None:
        """The rule that holds back the change to ``wish.value``, with a message; None if none does."""
        rules, urgent = self.rules(wish), self.is_urgent(wish)
        if rules.mode is UpdateMode.OFF:
            return Rule.UPDATE_MODE, texts.MODE_OFF
        # Recommendations still describe the old pods.
        if not urgent and self.pods_differ:
            return Rule.PODS_DIFFER, texts.PODS_DIFFER.format(difference=self.pods_differ)
        if not urgent and not delay_passed(self._last(wish), self.now, rules.delay):
            return self._delayed(wish)
        # Off and the maintenance window apply to urgent changes too.
        window = self.spec.window
        if rules.mode is UpdateMode.MAINTENANCE_WINDOW and not (window is not None and window.contains(self.now)):
            return Rule.MAINTENANCE_WINDOW, texts.UNTIL_WINDOW.format(window=window) if window else texts.NO_WINDOW
        least = self._least(wish)
        if not urgent and not is_enough(wish.now, wish.value, least):
            return Rule.MIN_CHANGE, texts.SMALL_CHANGE.format(least=wish.shown(ceil(least)))
        # Only shrinking settles. Reported as a delay, so that there is a single time to wait for.
        is_settled = wish.grows or delay_passed(enough_since(self.memory, wish, self.now), self.now, self.spec.settle)
        return None if is_settled else self._delayed(wish)

    def _delayed(self, wish: Recommendation) -> tuple[Rule, str]:
        """The time at which neither delay nor settling holds it back, if less is still enough."""
        until = (self._last(wish) or self.now) + timedelta(seconds=self.rules(wish).delay)
        if self.spec.settle and not wish.grows:
            until = max(until, enough_since(self.memory, wish, self.now) + timedelta(seconds=self.spec.settle))
        return Rule.DELAY, texts.UNTIL.format(time=until.astimezone(UTC))

    def _last(self, wish: Recommendation) -> datetime | None:
        return self.memory.last_up if wish.grows else self.memory.last_down

    def _least(self, wish: Recommendation) -> Fraction:
        if wish.resource is None:
            # Any change of replicas counts.
            return Fraction(0)
        params = self.rules(wish).min_change[wish.resource]
        return threshold(params, wish.now, DEFAULT_MIN_CHANGE[wish.resource].value)


@dataclass(frozen=True, slots=True)
class GatedRecommendation:
    """A recommendation, ``why``, and the rule that holds it back; None if it is written."""

    wish: Recommendation
    why: str
    rule: Rule | None = None
    message: str = ""


def gated(gates: Gates, wish: Recommendation, why: str) -> GatedRecommendation:
    """The recommendation with the gate that holds it back, if any."""
    return GatedRecommendation(wish, why, *(gates.held(wish) or ()))


def written(answers: Iterable[GatedRecommendation]) -> list[Recommendation]:
    """Recommendations to write."""
    return [answer.wish for answer in answers if answer.rule is None]
