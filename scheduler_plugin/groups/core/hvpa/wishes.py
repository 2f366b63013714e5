"""What the recommenders want changed: one wish for the replicas, and one for each resource of each container.

Effective intervals shrink only after less has been enough for a while (S1.12). Growth never waits.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime

from scheduler_plugin.groups.core.hvpa.spec import ContainerPolicy, HvpaSpec, ScalingTimes, Shrinking
from scheduler_plugin.groups.core.workload import (
    ContainerRecommendation,
    HorizontalRecommendation,
    Recommendations,
    Resource,
    Rule,
    SizedContainer,
    WithheldChange,
    Workload,
    amount,
)


@dataclass(frozen=True, slots=True)
class Recommendation:
    """One number, what is wanted instead, and what would be written (``value``).

    Replicas have neither ``container`` nor ``resource``. ``current`` is None if a container has neither request nor
    limit.
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
    desired = workload.replicas if recommended is None else recommended.desired
    wanted = spec.replicas.clamp(desired)
    return None if wanted == workload.replicas else Recommendation(workload.replicas, wanted, wanted)


@dataclass(frozen=True, slots=True)
class VerticalWishes:
    """The wishes for sizes, and what bounds alone keep from growing or shrinking."""

    wishes: tuple[Recommendation, ...]
    at_bounds: tuple[Recommendation, ...]

    def exhausted(self, growing: bool) -> bool:
        """Return True if a size is at its bound in that direction and more is recommended."""
        return any(wish.grows is growing for wish in self.at_bounds)


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
    vertical = recommendations.vertical
    pairs = (
        []
        if vertical is None
        else [(container, vertical.container(container.name)) for container in workload.containers]
    )
    return [
        (container, recommended)
        for container, recommended in pairs
        if recommended is not None and not spec.policy(container.name).is_off
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
