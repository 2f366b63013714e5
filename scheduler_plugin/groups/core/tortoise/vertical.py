"""Container sizes under vertical and horizontal scaling, and which of them to write now (S3.4, S3.5).

- Vertical: the recommendation plus a buffer. A change may restart pods, so containers grow further than needed, and
  shrink only by a large step.
- Horizontal: sizes change if the replica count should not. Containers grow if there are too many replicas, and shrink
  at the minimum count. A container far below its target utilization shrinks if other containers drive the count.
- Sizes are within the bounds, and one decrease keeps ``max_allowed_scaling_down_ratio`` of the present size.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from fractions import Fraction

from protocol.units import Amount
from scheduler_plugin.groups import texts
from scheduler_plugin.groups.core.hvpa.policy import scaled_limit
from scheduler_plugin.groups.core.tortoise.autoscaler import Place, Scaling, horizontal
from scheduler_plugin.groups.core.tortoise.configuration import (
    CLOSE,
    DOWN_INTERVAL,
    GROWTH,
    GROWTH_INTERVAL,
    UNDER_USED,
    Configuration,
)
from scheduler_plugin.groups.core.tortoise.tortoise_memory import Phase, Spec, TortoiseMemory, has_passed
from scheduler_plugin.groups.core.workload import (
    NOTHING,
    Resource,
    Rule,
    SizeBounds,
    SizedContainer,
    WithheldChange,
    Workload,
)


@dataclass(frozen=True, slots=True)
class ReplicaCounts:
    """The replica count, and the counts that it is compared with.

    ``hpa_min`` is the HPA's minimum (None without an HPA). ``grows`` is True if there have been too many replicas for
    long enough that containers should grow.
    """

    replicas: int
    hpa_min: int | None
    minimum_min: int
    preferred_max: int
    grows: bool = False

    @property
    def are_close_to_too_many(self) -> bool:
        """True if smaller containers might raise the count above ``preferred_max``."""
        return int(self.preferred_max * CLOSE) < self.replicas


@dataclass(frozen=True, slots=True)
class SizeFacts:
    """One resource of one container, in thousandths of a vCPU or bytes; all above zero except ``minimum``.

    ``recommended`` is the highest recent recommendation, ``target`` the HPA's target utilization in percent, if any.
    ``several`` is True if more than one resource scales horizontally. ``maximum`` takes precedence over ``minimum``.
    """

    request: int
    recommended: int
    minimum: int
    maximum: int
    target: int | None = None
    several: bool = False


@dataclass(frozen=True, slots=True)
class SizeDecision:
    """The size to set, the desired size without bounds, and the reason."""

    size: int
    desired: int
    reason: str


def container_size(
    policy: Scaling, facts: SizeFacts, numbers: ReplicaCounts, configuration: Configuration
) -> SizeDecision:
    """Decide the request of one resource of one container."""
    if policy is Scaling.OFF:
        return SizeDecision(facts.request, facts.request, texts.POLICY_OFF)
    if policy is Scaling.VERTICAL:
        desired, because = _vertical(facts, configuration.buffer_ratio_on_vertical_resource)
    else:
        desired, because = _horizontal(facts, numbers)
    # Limit a decrease, against bad recommendations. The upper bound is applied last, so it wins.
    minimum = max(facts.minimum, int(facts.request * configuration.max_allowed_scaling_down_ratio))
    return SizeDecision(min(facts.maximum, max(desired, minimum)), desired, because)


def _horizontal(facts: SizeFacts, numbers: ReplicaCounts) -> tuple[int, str]:
    if numbers.grows:
        return int(facts.request * GROWTH), texts.TOO_MANY_REPLICAS
    if numbers.are_close_to_too_many:
        return facts.request, texts.NEARLY_TOO_MANY
    if numbers.replicas <= numbers.minimum_min:
        is_used = facts.recommended >= facts.request
        return (facts.request, texts.FEWEST_AND_USED) if is_used else (facts.recommended, texts.FEWEST_REPLICAS)
    # At the HPA's minimum no container determines the count.
    drives = facts.several and (numbers.hpa_min is None or numbers.replicas > numbers.hpa_min)
    if drives and facts.target and facts.recommended * 100 < UNDER_USED * facts.target * facts.request:
        return facts.recommended * 100 // facts.target, texts.LITTLE_USED
    return facts.request, texts.FOLLOWS_NEED


def _vertical(facts: SizeFacts, buffer: Fraction) -> tuple[int, str]:
    ideal = int(facts.recommended * (1 + buffer))
    if ideal > facts.request:
        # Twice the buffer: one large step instead of several, because each may restart pods.
        return int(facts.recommended * (1 + buffer) * (1 + buffer)), texts.ABOVE_REQUEST
    # With a buffer on both sides, because a change may restart pods.
    if facts.request / (1 + buffer) * (1 - buffer) > facts.recommended * (1 + buffer):
        return ideal, texts.FAR_BELOW_REQUEST
    return facts.request, texts.CLOSE_TO_REQUEST


@dataclass(frozen=True, slots=True)
class Resize:
    """Present and decided request of one resource of one container, and its new limit; None if it does not change."""

    place: Place
    request: Amount
    decision: SizeDecision
    limit: int | None = None

    @property
    def shrinks(self) -> bool:
        """True if the request decreases."""
        return self.decision.size < self.request.value


def growth_due(
    memory: TortoiseMemory, configuration: Configuration, replicas: int, hpa_min: int | None, now: datetime
) -> tuple[bool, TortoiseMemory]:
    """Return whether containers should grow because of too many replicas, and the new memory."""
    if replicas < configuration.preferred_max_replicas or not horizontal(memory.policies):
        return False, replace(memory, too_many_since=None)
    # At the HPA's minimum larger containers would not lower the count.
    if hpa_min is None or replicas <= hpa_min:
        return False, memory
    since = memory.too_many_since
    if since is None or since > now:  # a future time is from another clock
        return False, replace(memory, too_many_since=now)
    if now - since < GROWTH_INTERVAL:
        return False, memory
    # Restart the interval for the next growth.
    return True, replace(memory, too_many_since=now)


def resizes(
    spec: Spec, workload: Workload, memory: TortoiseMemory, numbers: ReplicaCounts, targets: Mapping[Place, int | None]
) -> Iterator[Resize]:
    """Yield every resource that may be sized now, in the order of the containers; ``targets`` are the HPA's.

    In an emergency, and while returning from one, only memory of OOM-killed containers.
    """
    configuration = spec.configuration
    killed = {(kill.container, "memory") for kill in workload.out_of_memory}
    is_usual = memory.phase in (Phase.WORKING, Phase.PARTLY_WORKING)
    for container in workload.containers:
        recommended = memory.recommended.get(container.name, NOTHING)
        for resource, request in container.sizes:
            place, wanted = (container.name, resource), recommended[resource]
            if memory.works(place) and request and wanted is not None and (is_usual or place in killed):
                minimum, maximum = bounds_of(
                    spec.sizes.get(container.name, SizeBounds()), configuration.sizes, resource
                )
                target, several = targets.get(place), len(targets) > 1
                facts = SizeFacts(request.value, wanted.value, minimum, maximum, target, several=several)
                # After an OOM kill memory grows, even if it scales horizontally.
                policy = Scaling.VERTICAL if place in killed else memory.policies[place]
                decision = container_size(policy, facts, numbers, configuration)
                # Nothing shrinks in an emergency.
                if is_usual or decision.size > request.value:
                    yield Resize(place, request, decision, _limit(container, place, decision, configuration))


def _limit(container: SizedContainer, place: Place, decision: SizeDecision, configuration: Configuration) -> int | None:
    """Limit for a new request: a configured multiple of it, or else in the old ratio; None if it does not change."""
    resource = place[1]
    limit, request = container.limits[resource], container.sizes[resource]
    if limit is None or request is None or decision.size == request.value:
        return None
    multiplier = configuration.resource_limit_multiplier.get(resource)
    scaled = (
        scaled_limit(limit.value, request.value, decision.size) if multiplier is None else decision.size * multiplier
    )
    minimum = configuration.minimum_cpu_limit.value if resource == "cpu" else 0
    return max(scaled or 0, minimum)


def bounds_of(own: SizeBounds, cluster: SizeBounds, resource: Resource) -> tuple[int, int]:
    """The narrower of the container's and the cluster's bounds. If they conflict, the upper one wins."""
    lower = [bound.value for bound in (own.min[resource], cluster.min[resource]) if bound is not None]
    upper = [bound.value for bound in (own.max[resource], cluster.max[resource]) if bound is not None]
    return min(max(lower), *upper), min(upper)


def written(
    changes: Iterable[Resize], memory: TortoiseMemory, now: datetime
) -> tuple[tuple[SizedContainer, ...], list[WithheldChange], TortoiseMemory]:
    """Return the requests to write now, the withheld changes, and the new memory.

    Increases are written immediately, decreases at most once per ``DOWN_INTERVAL``, because each may replace every pod.
    """
    waits = not has_passed(DOWN_INTERVAL, memory.shrunk_at, now)
    containers: dict[str, SizedContainer] = {}
    withheld: list[WithheldChange] = []
    lowered = False
    for change in changes:
        container, resource = change.place
        delayed = change.shrinks and waits
        if change.decision.size != change.request.value and not delayed:
            sized = containers.get(container, SizedContainer(container))
            requests = sized.requests.with_value(resource, change.decision.size)
            containers[container] = SizedContainer(container, requests, sized.limits.with_value(resource, change.limit))
            lowered = lowered or change.shrinks
        withheld += _withheld(change, delayed=delayed)
    remembered = replace(memory, shrunk_at=now) if lowered else memory
    return tuple(containers.values()), withheld, remembered


def _withheld(change: Resize, *, delayed: bool) -> list[WithheldChange]:
    # `MilliCpu` or `Bytes`, by the resource.
    size, desired = (type(change.request)(value) for value in (change.decision.size, change.decision.desired))
    subject = "/".join(change.place)
    if delayed:
        return [WithheldChange(subject, size, change.request, Rule.DELAY, texts.LOWERED_RECENTLY)]
    return [] if size == desired else [WithheldChange(subject, desired, size, Rule.BOUNDS, change.decision.reason)]
