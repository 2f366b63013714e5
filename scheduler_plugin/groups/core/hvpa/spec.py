"""What one Hvpa asks for: bounds, mode, and what holds scaling back in each direction; and what must not be forgotten.

Of pods as they are, and as they were when the present measurements were taken:

- An HPA's measurements are up to ``MEASURED_WITHIN`` old: they may describe any state of the pods in that time.
- Decisions wait for pods that differ from what was ordered, but not for ever.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from fractions import Fraction
from typing import Final

from protocol.units import Seconds
from scheduler_plugin.groups.core.hvpa.rules import (
    NO_PARAMS,
    ChangeParams,
    HvpaMode,
    Interval,
    MaintenanceWindow,
    Mixed,
    ResourceChangeParams,
)
from scheduler_plugin.groups.core.workload import (
    NOTHING,
    ONE_REPLICA,
    RESOURCES,
    UNBOUNDED,
    ReplicaBounds,
    Resource,
    ResourceList,
    RunningPods,
    SizeBounds,
    SizedContainer,
    by_name,
)

_TEN_PERCENT: Final = ChangeParams(percentage=Fraction(10))
DEFAULT_OVERLAP: Final = ResourceChangeParams(_TEN_PERCENT, _TEN_PERCENT)


@dataclass(frozen=True, slots=True)
class ScalingInterval:
    """Up to ``max_replicas`` replicas, each may have at most ``most``; what is missing is bounded by maxAllowed."""

    max_replicas: int | None = None
    most: ResourceList = NOTHING


@dataclass(frozen=True, slots=True)
class EffectiveIntervals:
    """The intervals, in any order; what every replica has for itself; and the overlap when scaling in."""

    intervals: tuple[ScalingInterval, ...] = ()
    base: ResourceChangeParams = NO_PARAMS
    overlap: ResourceChangeParams = DEFAULT_OVERLAP

    def most(self, replicas: int) -> ResourceList:
        """The most that each of ``replicas`` replicas may have: that of the first interval that reaches so far."""
        reached = [
            interval
            for interval in self.intervals
            if interval.max_replicas is None or replicas <= interval.max_replicas
        ]
        # An interval without an end comes last: it holds for all larger counts.
        ordered = sorted(reached, key=lambda interval: (interval.max_replicas is None, interval.max_replicas or 0))
        return ordered[0].most if ordered else NOTHING


ANY_CONTAINER: Final = "*"
"""The name of the policy for containers that have none of their own."""


class UpdateMode(StrEnum):
    """Update mode: recommendations are applied always, never, or within the maintenance window."""

    AUTO = "Auto"
    OFF = "Off"
    MAINTENANCE_WINDOW = "MaintenanceWindow"


@dataclass(frozen=True, slots=True)
class DirectionRules:
    """Limits on scaling in one direction. ``delay`` is in seconds after the last scaling in that direction."""

    mode: UpdateMode = UpdateMode.AUTO
    delay: Seconds = Seconds(0.0)
    min_change: ResourceChangeParams = NO_PARAMS


@dataclass(frozen=True, slots=True)
class AxisRules:
    """The rules for growing and for shrinking along one axis."""

    up: DirectionRules = field(default=DirectionRules())
    down: DirectionRules = field(default=DirectionRules())


@dataclass(frozen=True, slots=True)
class ContainerPolicy:
    """Sizing policy of one container. ``controls_limits`` is off if limits must stay as they are."""

    name: str = ANY_CONTAINER
    bounds: SizeBounds = UNBOUNDED
    resources: tuple[Resource, ...] = RESOURCES
    controls_limits: bool = True
    is_off: bool = False


@dataclass(frozen=True, slots=True)
class HvpaSpec:
    """Everything that the policy needs of an Hvpa.

    ``desired_by_utilization`` says that the HPA measures use against requests: a larger replica then needs fewer.
    ``settle``: seconds for which less must have been enough before effective intervals shrink anything.
    """

    replicas: ReplicaBounds = ONE_REPLICA
    mode: HvpaMode = HvpaMode.EFFECTIVE_INTERVALS
    intervals: tuple[Interval, ...] = ()
    mixed: Mixed = field(default=Mixed())
    effective: EffectiveIntervals = field(default=EffectiveIntervals())
    containers: tuple[ContainerPolicy, ...] = ()
    horizontal: AxisRules = field(default=AxisRules())
    vertical: AxisRules = field(default=AxisRules())
    window: MaintenanceWindow | None = None
    limit_gap: ResourceChangeParams = NO_PARAMS
    desired_by_utilization: tuple[Resource, ...] = ()
    settle: Seconds = Seconds(0.0)

    def policy(self, container: str) -> ContainerPolicy:
        """The policy of that container: its own, that of ``*``, or none in particular."""
        # Reversed, so that the first policy of a name wins.
        named = {policy.name: policy for policy in reversed(self.containers)}
        return named.get(container) or named.get(ANY_CONTAINER) or ContainerPolicy()


MEASURED_WITHIN: Final = timedelta(seconds=90)
"""Metrics are up to 60 s old, and an HPA looks at them every 15 s."""

PATIENCE: Final = timedelta(minutes=5)
"""How long pods may differ before decisions go on: as long as the HPA controller gives a new pod to initialise."""

REFUSED_PATIENCE: Final = timedelta(minutes=1)
"""The same after a resize in place was refused: then waiting changes little."""

POSSIBLE_FOR: Final = timedelta(days=1)
"""How long after a refusal no more is ordered than pods could have then."""

MOST_PASTS: Final = 16


@dataclass(frozen=True, slots=True)
class PastPods:
    """This many ready pods of these mean ``sizes`` from ``since`` (an aware time) on."""

    since: datetime
    ready: int
    sizes: tuple[SizedContainer, ...] = ()


@dataclass(frozen=True, slots=True)
class Possible:
    """No pod could have more than ``most`` of a container's resource at ``at`` (an aware time)."""

    container: str
    resource: Resource
    most: int
    at: datetime


@dataclass(frozen=True, slots=True)
class PodsMemory:
    """Memory of the pods: the ``past``, the latest last; since when they differ; and what is possible."""

    past: tuple[PastPods, ...] = ()
    differ_since: datetime | None = None
    possible: tuple[Possible, ...] = ()

    def most(self, container: str, resource: Resource) -> int | None:
        """The most that pods can have of it; None if nothing was refused."""
        limits = (limit.most for limit in self.possible if (limit.container, limit.resource) == (container, resource))
        return next(limits, None)


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
class PastTarget:
    """A vertical target, in thousandths of a vCPU or bytes, and the number of replicas whose use explains it."""

    container: str
    resource: Resource
    target: int
    replicas: int


@dataclass(frozen=True, slots=True)
class PastReplicas:
    """This many replicas from ``since`` (an aware time) on."""

    since: datetime
    replicas: int


@dataclass(frozen=True, slots=True)
class Shrinking:
    """Less of ``subject`` has been enough ``since`` (an aware time); ``highest`` is the maximum need then."""

    subject: str
    since: datetime
    highest: int


@dataclass(frozen=True, slots=True)
class ScalingTimes:
    """Persistent memory: when the workload was last scaled up and down, by either axis (aware times).

    ``targets`` and ``counts`` are for effective intervals: what a VPA recommended, and beside how many replicas. Counts
    fall from entry to entry. ``shrinking`` are the wishes for less that wait, at most one for each subject. ``pods`` is
    what is remembered of the pods as they are.
    """

    last_up: datetime | None = None
    last_down: datetime | None = None
    targets: tuple[PastTarget, ...] = ()
    counts: tuple[PastReplicas, ...] = ()
    shrinking: tuple[Shrinking, ...] = ()
    pods: PodsMemory = field(default=PodsMemory())
