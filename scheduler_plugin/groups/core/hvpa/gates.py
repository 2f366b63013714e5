"""What the recommenders want changed, and what holds a wish back now: update mode, pods that differ from what was
ordered, delay, maintenance window and least change, in this order (S1.8, S1.9, S1.12).

- An HPA's measurements are up to ``MEASURED_WITHIN`` old: they may describe any state of the pods in that time.
- Decisions wait for pods that differ from what was ordered, but not for ever.
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
"""Metrics are up to 60 s old, and an HPA looks at them every 15 s."""

PATIENCE: Final = timedelta(minutes=5)
"""How long pods may differ before decisions go on: as long as the HPA controller gives a new pod to initialise."""

REFUSED_PATIENCE: Final = timedelta(minutes=1)
"""The same after a resize in place was refused: then waiting changes little."""

POSSIBLE_FOR: Final = timedelta(days=1)
"""How long after a refusal no more is ordered than pods could have then."""

MOST_PASTS: Final = 16


def followed(memory: PodsMemory, pods: RunningPods | None, now: datetime) -> PodsMemory:
    """The memory with the pods as they are now. A time in the future proves nothing."""
    possible = tuple(limit for limit in memory.possible if timedelta(0) <= now - limit.at < POSSIBLE_FOR)
    if pods is None:
        return PodsMemory(possible=possible)
    since = memory.differ_since
    # A difference counts from when it began; a time in the future comes from another clock.
    since = None if not pods.difference else since if since is not None and since <= now else now
    updated = PodsMemory(_past(memory.past, pods, now), since, possible)
    # A refusal counts only once the patience is over: the kubelet may still find room.
    if waits_for(updated, pods, now) or not pods.difference:
        return updated
    refused = {
        (container.name, resource): Possible(container.name, resource, amount.value, now)
        for container in pods.refused
        for resource, amount in container.sizes
    }
    # A newer refusal replaces the older one for the same resource.
    remaining = tuple(limit for limit in possible if (limit.container, limit.resource) not in refused)
    return PodsMemory(updated.past, since, (*remaining, *refused.values()))


def waits_for(memory: PodsMemory, pods: RunningPods | None, now: datetime) -> str:
    """The difference of the pods from what was ordered, as long as decisions wait for it; else empty."""
    if pods is None or memory.differ_since is None:
        return ""
    patience = REFUSED_PATIENCE if pods.refused else PATIENCE
    return pods.difference if now - memory.differ_since < patience else ""


def _past(past: Sequence[PastPods], pods: RunningPods, now: datetime) -> tuple[PastPods, ...]:
    """The pods now, after those that a measurement may still describe."""
    before = past[-1] if past else None
    is_same = before is not None and (before.ready, before.sizes) == (pods.ready, pods.sizes)
    entries = [*past] if is_same else [*past, PastPods(now, pods.ready, pods.sizes)]
    # An entry ends when the next one begins; the last one still holds.
    ends = [later.since for later in entries[1:]]
    recent = [entry for entry, end in zip(entries, ends, strict=False) if timedelta(0) <= now - end < MEASURED_WITHIN]
    return (*recent, entries[-1])[-MOST_PASTS:]


def requested(sizes: Sequence[SizedContainer], container: str, resource: Resource) -> int:
    """The request of a pod of these sizes for one container."""
    sized = by_name(sizes, container)
    amount = None if sized is None else sized.sizes[resource]
    return 0 if amount is None else amount.value


@dataclass(frozen=True, slots=True)
class Recommendation:
    """One number (None: a container has no size), what is wanted instead, and what would be written (``value``).

    Replicas have neither ``container`` nor ``resource``.
    """

    current: int | None
    wanted: int
    value: int
    container: str = ""
    resource: Resource | None = None

    @property
    def now(self) -> int:
        """The current number; nothing counts as zero."""
        return self.current or 0

    @property
    def grows(self) -> bool:
        """True if more is wanted."""
        return self.wanted > self.now

    @property
    def subject(self) -> str:
        """Its name in status."""
        return f"{self.container}/{self.resource}" if self.resource else "replicas"

    def shown(self, value: int) -> str:
        """``value`` as people write such an amount."""
        return str(value) if self.resource is None else str(amount(self.resource, value))

    @property
    def change(self) -> str:
        """The change that is written, with the wish if that is more or less."""
        description = f"{self.subject}: {self.shown(self.now)} to {self.shown(self.value)}"
        return description if self.value == self.wanted else f"{description} of {self.shown(self.wanted)}"

    def at(self, value: int) -> Recommendation:
        """The same wish, answered with ``value``."""
        return replace(self, value=value)

    def kept(self, rule: Rule, message: str = "") -> WithheldChange:
        """That this wish does not go through, and why."""
        if self.resource is None:
            return WithheldChange(self.subject, self.wanted, self.current, rule, message)
        current = None if self.current is None else amount(self.resource, self.current)
        return WithheldChange(self.subject, amount(self.resource, self.wanted), current, rule, message)


def replica_wish(
    spec: HvpaSpec, workload: Workload, recommended: HorizontalRecommendation | None
) -> Recommendation | None:
    """The HPA's wish within the bounds; None if the replicas are as wanted. Bounds hold without an HPA too."""
    wanted = spec.replicas.clamp(workload.replicas if recommended is None else recommended.desired)
    return None if wanted == workload.replicas else Recommendation(workload.replicas, wanted, wanted)


@dataclass(frozen=True, slots=True)
class VerticalWishes:
    """The wishes for sizes, and what bounds alone keep from growing or shrinking."""

    wishes: tuple[Recommendation, ...]
    at_bounds: tuple[Recommendation, ...]


def vertical_wishes(spec: HvpaSpec, workload: Workload, recommendations: Recommendations) -> VerticalWishes:
    """The VPA's wishes for every container of the workload, within minAllowed and maxAllowed."""
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
            # A VPA caps its target; only the uncapped one shows that more was wanted.
            beyond = (recommended.uncapped[resource] or target).value
            if wanted != (current or 0):
                wishes.append(Recommendation(current, wanted, wanted, container.name, resource))
            elif within_policy(policy, container, resource, beyond) != beyond:
                at_bounds.append(Recommendation(current, beyond, wanted, container.name, resource))
    return VerticalWishes(tuple(wishes), tuple(at_bounds))


def within_policy(policy: ContainerPolicy, container: SizedContainer, resource: Resource, value: int) -> int:
    """The nearest request that the policy allows: within its bounds, and within a limit that must stay."""
    # A limit that stays also bounds the request: the API server refuses a request above its limit.
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
    """The workload's containers that have a recommendation and are not switched off."""
    vertical = recommendations.vertical or VerticalRecommendation()
    return [
        (container, recommended)
        for container in workload.containers
        if (recommended := vertical.container(container.name)) and not spec.policy(container.name).is_off
    ]


def at_most_needed(memory: ScalingTimes, wish: Recommendation) -> Recommendation:
    """The wish; one for less goes no lower than the maximum need since less has been enough."""
    waiting = _known(memory, wish)
    # The maximum over that time, so that noise does not reverse the change right after it.
    return wish if waiting is None or wish.grows else wish.at(min(wish.now, max(wish.value, waiting.highest)))


def enough_since(memory: ScalingTimes, wish: Recommendation, now: datetime) -> datetime:
    """Since when less than there is has been enough; a time in the future is now."""
    waiting = _known(memory, wish)
    # A time in the future comes from another clock.
    return now if waiting is None else min(waiting.since, now)


def with_waiting(memory: ScalingTimes, waiting: Iterable[Recommendation], now: datetime) -> ScalingTimes:
    """The memory with these wishes for less, and no others."""
    # Wishes that no longer wait are dropped, so a sample that needs the present size restarts the time.
    shrinking = tuple(Shrinking(wish.subject, enough_since(memory, wish, now), wish.value) for wish in waiting)
    return replace(memory, shrinking=shrinking)


def _known(memory: ScalingTimes, wish: Recommendation) -> Shrinking | None:
    return next((shrinking for shrinking in memory.shrinking if shrinking.subject == wish.subject), None)


DEFAULT_MIN_CHANGE: Final[dict[Resource, Amount]] = {"cpu": MilliCpu(200), "memory": Bytes(200_000_000)}
"""The least change if the object has neither value nor percentage."""


def threshold(params: ChangeParams, current: Exact, default: Exact) -> Fraction:
    """The least change from ``current`` that counts: the smaller of both, the one that is given, or the default."""
    # A container without a request has a percentage of nothing: any change counts.
    parts = params.parts(current)
    return min(parts) if parts else Fraction(default)


def is_enough(current: Exact, new: Exact, least: Fraction) -> bool:
    """Return True if the change from ``current`` to ``new`` reaches ``least``; equality does."""
    return abs(Fraction(new) - current) >= least


def delay_passed(last: datetime | None, now: datetime, delay: Seconds) -> bool:
    """Return True if ``delay`` has passed since ``last``; equality passes, and a time in the future proves nothing."""
    # A time in the future comes from another node's clock; waiting for it could take for ever.
    return last is None or last > now or (now - last).total_seconds() >= delay


@dataclass(frozen=True, slots=True)
class Gates:
    """Decides for one moment. A container in ``out_of_memory`` gets more memory without delay and least change."""

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

    def held(self, wish: Recommendation) -> tuple[Rule, str] | None:
        """The rule that holds the change to ``wish.value`` back, with a message for people; None if it may go."""
        rules, urgent = self.rules(wish), self.is_urgent(wish)
        if rules.mode is UpdateMode.OFF:
            return Rule.UPDATE_MODE, texts.MODE_OFF
        # While pods differ, recommendations still describe the old ones.
        if not urgent and self.pods_differ:
            return Rule.PODS_DIFFER, texts.PODS_DIFFER.format(difference=self.pods_differ)
        if not urgent and not delay_passed(self._last(wish), self.now, rules.delay):
            return self._delayed(wish)
        # Off and the maintenance window hold for urgent wishes as well.
        window = self.spec.window
        if rules.mode is UpdateMode.MAINTENANCE_WINDOW and not (window is not None and window.contains(self.now)):
            return Rule.MAINTENANCE_WINDOW, texts.UNTIL_WINDOW.format(window=window) if window else texts.NO_WINDOW
        least = self._least(wish)
        if not urgent and not is_enough(wish.now, wish.value, least):
            return Rule.MIN_CHANGE, texts.SMALL_CHANGE.format(least=wish.shown(ceil(least)))
        # Only shrinking settles. It is reported as a delay, so that people see a single time to wait for.
        is_settled = wish.grows or delay_passed(enough_since(self.memory, wish, self.now), self.now, self.spec.settle)
        return None if is_settled else self._delayed(wish)

    def _delayed(self, wish: Recommendation) -> tuple[Rule, str]:
        """Until neither delay nor settling holds the wish back, if less is enough until then."""
        until = (self._last(wish) or self.now) + timedelta(seconds=self.rules(wish).delay)
        if self.spec.settle and not wish.grows:
            until = max(until, enough_since(self.memory, wish, self.now) + timedelta(seconds=self.spec.settle))
        return Rule.DELAY, texts.UNTIL.format(time=until.astimezone(UTC))

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
    """A wish with the value to write and ``why``, and the rule that keeps it from being written; None if it is."""

    wish: Recommendation
    why: str
    rule: Rule | None = None
    message: str = ""


def gated(gates: Gates, wish: Recommendation, why: str) -> GatedRecommendation:
    """The wish with the gate that holds it back, if one does."""
    return GatedRecommendation(wish, why, *(gates.held(wish) or ()))


def written(answers: Iterable[GatedRecommendation]) -> list[Recommendation]:
    """The wishes that are written."""
    return [answer.wish for answer in answers if answer.rule is None]
