"""The total need of a workload, from both recommenders (S1.12).

A VPA's target reflects past use, possibly with other replica counts:

- After scaling out, the target stays high for hours or days. Until it has fallen to what the present replicas explain,
  or has risen, it counts for the earlier replicas; otherwise the count would run away to ``maxReplicas``.
- After scaling in, the target rises within hours. Until then it counts for the highest count of that time.
- So the total lies between two numbers. Scaling out uses the smaller one, scaling in and sizes the larger one.

A need has a part per replica (``base``) and a part shared by all (``total``). Neither depends on the replica count, so
the plan does not depend on the order of recommendations.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from itertools import product
from math import ceil
from typing import Final

from protocol.units import Amount
from scheduler_plugin.groups.core.hvpa.gates import followed, is_sized, requested, sized_containers, waits_for
from scheduler_plugin.groups.core.hvpa.old_metrics import with_measured
from scheduler_plugin.groups.core.hvpa.spec import (
    ChangeParams,
    Exact,
    HvpaSpec,
    PastPods,
    PastReplicas,
    PastTarget,
    ResourceChangeParams,
    ScalingTimes,
)
from scheduler_plugin.groups.core.workload import (
    HorizontalRecommendation,
    Recommendations,
    ReplicaBounds,
    Resource,
    Workload,
)


@dataclass(frozen=True, slots=True)
class ContainerNeed:
    """Need of one resource of one container, in thousandths of a vCPU or bytes.

    ``base`` is per replica, ``total`` is shared by all. Replicas are added only for the certain part of the total,
    ``certain``, and sizes grow only for the part ``grown``; None means the whole total.
    """

    container: str
    resource: Resource
    base: int
    total: int
    certain: int | None = None
    grown: int | None = None

    def only_certain(self) -> ContainerNeed:
        """The certain part as the whole need."""
        return replace(self, total=self._certain, certain=None, grown=None)

    @property
    def _certain(self) -> int:
        return self.total if self.certain is None else self.certain

    def size_each(self, replicas: int) -> int:
        """Size per replica with ``replicas`` (> 0), rounded up."""
        return self._shared(self.total, replicas)

    def grows_to(self, replicas: int) -> int:
        """Size to which each of ``replicas`` (> 0) may grow."""
        return self._shared(self.total if self.grown is None else self.grown, replicas)

    def certain_each(self, replicas: int) -> int:
        """Size per replica with ``replicas`` (> 0) for the certain part, rounded up."""
        return self._shared(self._certain, replicas)

    def fits(self, replicas: int, max_size: int, overlap: ChangeParams, current: int) -> bool:
        """Return True if ``replicas`` of at most ``max_size`` are enough, given ``current`` replicas."""
        if replicas >= current:
            # Scale out only for the certain part, and in only with room to spare, to avoid flapping.
            return self.certain_each(replicas) <= max_size
        room = max(0, max_size - self.base) * replicas
        return self.size_each(replicas) <= max_size and self.total <= scale_in_boundary(room, overlap)

    def _shared(self, total: int, replicas: int) -> int:
        # Rounds up.
        return self.base - (-total // replicas)


def base_of(params: ChangeParams, target: int) -> int:
    """Base of a replica of size ``target``: the larger of value and percentage, at most ``target``."""
    return min(target, int(max([Fraction(0), *params.parts(target)])))


def scale_in_boundary(capacity: Exact, overlap: ChangeParams) -> Fraction:
    """Maximum total need (>= 0) for scaling in to replicas that can carry ``capacity`` together."""
    return max(Fraction(0), capacity - max([Fraction(0), *overlap.parts(capacity)]))


def planned_replicas(
    needs: Sequence[ContainerNeed],
    max_size: Callable[[ContainerNeed, int], Amount | None],
    overlap: ResourceChangeParams,
    current: int,
    bounds: ReplicaBounds,
) -> int:
    """The fewest replicas within ``bounds`` that fit every need; ``bounds.max`` if none do.

    ``max_size`` returns the maximum size of a need's resource at a replica count; None if unbounded.
    """

    def fits(need: ContainerNeed, replicas: int) -> bool:
        size = max_size(need, replicas)
        return size is None or need.fits(replicas, size.value, overlap[need.resource], current)

    # Ascending: vertical first.
    counts = range(bounds.min, bounds.max + 1)
    return next((count for count in counts if count > 0 and all(fits(need, count) for need in needs)), bounds.max)


RISES_WITHIN: Final = timedelta(hours=4)
"""A 90th percentile with a half-life of a day follows a rise once a tenth of the weight is new: after 3.7 hours."""

MOST_COUNTS: Final = 32
"""Maximum number of replica changes to remember within that time."""

_EXPLAINED: Final = Fraction(105, 100)  # a bucket of VPA's histogram is 5 % wide


def remembered(
    memory: ScalingTimes, spec: HvpaSpec, workload: Workload, recommendations: Recommendations, now: datetime
) -> ScalingTimes:
    """Update ``memory`` with the present targets and pods.

    While decisions wait for pods, few of them may be serving. A target that rises in that time counts for those few;
    other targets still count for the earlier replicas.
    """
    pods = followed(memory.pods, workload.pods, now)
    if pods.past:
        pods = with_measured(pods, memory.pods, recommendations.horizontal, now)
    memory = replace(memory, pods=pods)
    waits = bool(waits_for(memory.pods, workload.pods, now))
    targets = _targets(memory, spec, workload, recommendations, waits=waits)
    return replace(memory, targets=targets, counts=_counts(memory, workload, now))


def _targets(
    memory: ScalingTimes, spec: HvpaSpec, workload: Workload, recommendations: Recommendations, *, waits: bool
) -> tuple[PastTarget, ...]:
    # The fewest replicas that may explain the target: scaling out uses the smaller total.
    past = (pods.ready for pods in memory.pods.past)
    counted = (count.ready for count in memory.pods.counts)
    fewest = max(1, min([workload.serving, *past, *counted]))
    previous = {(past_target.container, past_target.resource): past_target for past_target in memory.targets}
    if recommendations.vertical is None:
        return memory.targets
    return tuple(
        _updated_target(
            previous.get((container.name, resource)),
            PastTarget(container.name, resource, target.value, fewest),
            waits=waits,
        )
        for container, recommended in sized_containers(spec, workload, recommendations)
        for resource, target in recommended.uncapped.over(recommended.target)
    )


def _updated_target(old: PastTarget | None, new: PastTarget, *, waits: bool) -> PastTarget:
    # A rising target reflects the load of the present replicas.
    if old is None or new.target > old.target:
        return new
    # Once target times replicas is no larger than before, the present replicas explain the target.
    is_explained = new.target * new.replicas <= old.target * old.replicas * _EXPLAINED
    return new if is_explained and not waits else old


def _counts(memory: ScalingTimes, workload: Workload, now: datetime) -> tuple[PastReplicas, ...]:
    """Earlier larger counts, then the present one; smaller ones do not affect the maximum."""
    larger = [past for past in memory.counts if past.replicas > workload.replicas]
    same = next((past for past in memory.counts if past.replicas == workload.replicas), None)
    entries = [*larger, same or PastReplicas(now, workload.replicas)]
    # An entry ends when the next one begins; the last one still holds.
    ended = [later.since for later in entries[1:]]
    recent = [past for past, end in zip(entries, ended, strict=False) if timedelta(0) <= now - end < RISES_WITHIN]
    return (*recent[: MOST_COUNTS - 1], entries[-1])


def target_replicas(memory: ScalingTimes, container: str, resource: Resource, replicas: int) -> tuple[int, int]:
    """The fewest and most replicas that the container's VPA target may reflect; there are ``replicas`` now."""
    explained = (past.replicas for past in memory.targets if (past.container, past.resource) == (container, resource))
    # Twice, so that `min` has two arguments even without a memory.
    highest = max((past.replicas for past in memory.counts), default=replicas)
    return min(replicas, *explained, replicas), max(replicas, highest)


_NEVER: Final = datetime.min.replace(tzinfo=UTC)


def total_needs(
    spec: HvpaSpec, workload: Workload, recommendations: Recommendations, memory: ScalingTimes
) -> tuple[ContainerNeed, ...]:
    """The need of each resource of each container for which there is a recommendation.

    If an HPA should measure it and does not, such as without a metrics-server, it may be as large as the present sizes.
    """
    needs = _vertical(spec, workload, recommendations, memory)
    for container in workload.containers:
        for resource, size in container.sizes:
            key = (container.name, resource)
            measured = _measured(spec, workload, recommendations, memory, key)
            if measured is not None:
                needs[key] = _larger_need(needs.get(key), key, measured)
            elif key in needs and resource in spec.desired_by_utilization:
                present = [_Measured(workload.serving, workload.serving * size.value, 0, 0)]
                needs[key] = _larger_need(needs[key], key, present)
    return tuple(needs.values())


@dataclass(frozen=True, slots=True)
class _Measured:
    """Total need of ``ready`` pods, its certain part, and the part for which sizes grow."""

    ready: int
    total: int
    certain: int
    grown: int


def _measured(
    spec: HvpaSpec,
    workload: Workload,
    recommendations: Recommendations,
    memory: ScalingTimes,
    key: tuple[str, Resource],
) -> list[_Measured] | None:
    """Measurements of an HPA for each state of the pods that it may describe; None if there are none.

    A need is use divided by target for the actual pods. If an HPA reports neither use nor ratio, the need is only known
    to be more than ``desired - 1`` and at most ``desired`` requests.
    """
    horizontal, (container, resource) = recommendations.horizontal, key
    if horizontal is None or resource not in spec.desired_by_utilization:
        return None
    measurements = []
    # A new memory has no past pods: use the present ones.
    past = memory.pods.past or (PastPods(_NEVER, workload.serving, workload.containers),)
    # Use is older than the requests that it is divided by, so combine every ready count with all sizes.
    counts = {pods.ready for pods in past} | {past.ready for past in memory.pods.counts if past.resource == resource}
    states = product(sorted(counts), {pods.sizes for pods in past})
    for pods in (PastPods(_NEVER, ready, sizes) for ready, sizes in states):
        size = requested(pods.sizes, container, resource)
        per_pod = _needed_each(horizontal, pods, container, resource)
        if per_pod is not None:
            low, high = per_pod
            certain = ceil(low * pods.ready)
            measurements.append(_Measured(pods.ready, ceil(high * pods.ready), certain, certain))
        else:
            total, certain = horizontal.desired * size, (horizontal.desired - 1) * size + 1
            measurements.append(_Measured(pods.ready, total, certain, total))
    # Pods that were not ready have no measurements.
    return measurements if any(measurement.ready for measurement in measurements) else None


def _needed_each(
    horizontal: HorizontalRecommendation, pods: PastPods, container: str, resource: Resource
) -> tuple[Fraction, Fraction] | None:
    """Minimum and maximum need of the container per pod. Its part of a whole pod's use is in proportion to requests."""
    size = requested(pods.sizes, container, resource)
    total = sum(requested(pods.sizes, sized.name, resource) for sized in pods.sizes)
    part = Fraction(size, total) if total else Fraction(0)
    uses = [
        use.need * (Fraction(1) if use.container else part)
        for use in horizontal.uses
        if use.resource == resource and use.container in ("", container)
    ]
    if uses:
        # As in an HPA, the largest metric counts.
        return max(uses), max(uses)
    ratio, cut = dict(horizontal.ratios).get(resource), dict(horizontal.cuts).get(resource, 0.0)
    # Through `str`: `ceil` would round up the tail of a binary float.
    return None if ratio is None else (Fraction(str(ratio)) * size, Fraction(str(ratio + cut)) * size)


def _larger_need(
    vertical: ContainerNeed | None, key: tuple[str, Resource], measured: Sequence[_Measured]
) -> ContainerNeed:
    """The larger of both needs. Measurements include the base of each replica.

    The total follows from the largest measurement; only the smallest is certain, and sizes grow only to that.
    """
    base, total, certain = (0, 0, 0) if vertical is None else (vertical.base, vertical.total, vertical.certain or 0)
    largest = max(measurement.total - measurement.ready * base for measurement in measured)
    smallest = min(measurement.grown - measurement.ready * base for measurement in measured)
    least = min(measurement.certain - measurement.ready * base for measurement in measured)
    return ContainerNeed(*key, base, max(total, largest), max(certain, least), max(certain, smallest))


def _vertical(
    spec: HvpaSpec, workload: Workload, recommendations: Recommendations, memory: ScalingTimes
) -> dict[tuple[str, Resource], ContainerNeed]:
    exact = recommendations.vertical.replicas if recommendations.vertical else None
    needs = {}
    for container, recommended in sized_containers(spec, workload, recommendations):
        for resource, target in recommended.uncapped.over(recommended.target):
            if is_sized(spec, container.name, resource):
                key = (container.name, resource)
                # Our recommender reports its replica count; for a VPA it is estimated.
                low, high = (exact, exact) if exact else target_replicas(memory, *key, workload.replicas)
                base = base_of(spec.effective.base[resource], target.value)
                shared = target.value - base
                needs[key] = ContainerNeed(*key, base, high * shared, low * shared)
    return needs


def replica_bounds(
    spec: HvpaSpec, workload: Workload, recommendations: Recommendations, needs: Sequence[ContainerNeed]
) -> ReplicaBounds:
    """Bounds of the planned replica count. An HPA's count is a minimum unless it follows from utilization.

    Without both recommendations, or with an unknown need, no replica is removed.
    """
    minimum, horizontal = spec.replicas.min, recommendations.horizontal
    # A count by utilization depends on the size of the pods, so it is no minimum.
    if horizontal is not None and not spec.desired_by_utilization:
        minimum = max(minimum, horizontal.desired)
    # With an unknown need fewer replicas might be too few.
    if horizontal is None or recommendations.vertical is None or not needs or unknown_needs(spec, workload, needs):
        minimum = max(minimum, workload.replicas)
    return ReplicaBounds(spec.replicas.clamp(minimum), spec.replicas.max)


def unknown_needs(spec: HvpaSpec, workload: Workload, needs: Sequence[ContainerNeed]) -> tuple[str, ...]:
    """Resources that the group sizes without knowing their need, such as ``app/memory``."""
    covered = {(need.container, need.resource) for need in needs}
    return tuple(
        f"{container.name}/{resource}"
        for container in workload.containers
        for resource, _ in container.sizes
        if is_sized(spec, container.name, resource) and (container.name, resource) not in covered
    )
