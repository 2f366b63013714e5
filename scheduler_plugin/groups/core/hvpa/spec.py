"""Spec of an Hvpa: bounds, mode and rules per direction; and its memory."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime, time
from enum import StrEnum
from fractions import Fraction
from typing import Annotated, Final

import msgspec

from protocol.units import Bytes, MilliCpu, Seconds
from scheduler_plugin.groups.core.workload import (
    NOTHING,
    ONE_REPLICA,
    RESOURCES,
    UNBOUNDED,
    ReplicaBounds,
    Resource,
    ResourceList,
    SizeBounds,
    SizedContainer,
)

Moment = Annotated[datetime, msgspec.Meta(tz=True)]
"""An aware time."""

Exact = int | Fraction
"""An exact number."""


@dataclass(frozen=True, slots=True)
class ChangeParams:
    """An optional amount, in thousandths of a vCPU or bytes, and an optional percentage."""

    value: Exact | None = None
    percentage: Fraction | None = None

    def parts(self, of: Exact) -> list[Fraction]:
        """The amounts that are set; the percentage as an amount, in percent of ``of``."""
        absolute = [] if self.value is None else [Fraction(self.value)]
        return absolute if self.percentage is None else [*absolute, of * self.percentage / 100]


UNSET: Final = ChangeParams()
"""Neither a value nor a percentage."""


@dataclass(frozen=True, slots=True)
class ResourceChangeParams:
    """``ChangeParams`` for each resource."""

    cpu: ChangeParams = UNSET
    memory: ChangeParams = UNSET

    def __getitem__(self, resource: Resource) -> ChangeParams:
        return self.cpu if resource == "cpu" else self.memory


NO_PARAMS: Final = ResourceChangeParams()
"""Nothing set."""


@dataclass(frozen=True, slots=True)
class MaintenanceWindow:
    """From ``begin`` to ``end`` (UTC) every day, inclusive; across midnight if ``end`` is before ``begin``."""

    begin: time
    end: time

    def contains(self, now: datetime) -> bool:
        """Return True if ``now`` (aware) is within the window, in whole seconds."""
        # Whole seconds, to include the last one.
        at = now.astimezone(UTC).time().replace(microsecond=0)
        if self.begin <= self.end:
            return self.begin <= at <= self.end
        # Across midnight.
        return at >= self.begin or at <= self.end

    def __str__(self) -> str:
        return f"{self.begin:%H:%M:%S} to {self.end:%H:%M:%S} UTC"


class HvpaMode(StrEnum):
    """Mode of combining both recommendations."""

    HPA_PREFERRED = "HpaPreferred"
    HPA_BIASED = "HpaBiased"
    VPA_BIASED = "VpaBiased"
    MIXED = "Mixed"
    WEIGHT_BASED = "WeightBased"
    EFFECTIVE_INTERVALS = "EffectiveIntervals"


class Preference(StrEnum):
    """The recommendation that mixed mode prefers if both exceed their thresholds."""

    HPA = "hpa"
    VPA = "vpa"


@dataclass(frozen=True, slots=True)
class Mixed:
    """Mixed mode: thresholds of ``x`` replicas and ``y`` of each resource, and the preference if both exceed theirs."""

    x: int = 1
    y: ResourceList = field(default=ResourceList(MilliCpu(200), Bytes(200_000_000)))
    preference: Preference = Preference.HPA


@dataclass(frozen=True, slots=True)
class Interval:
    """The ``weight`` (0 to 1) of vertical recommendations from ``start`` to ``last`` replicas, inclusive.

    A missing end is the end of the replica bounds.
    """

    weight: Fraction
    start: int | None = None
    last: int | None = None

    def within(self, bounds: ReplicaBounds) -> tuple[int, int]:
        """First and last replica count of the interval."""
        return (
            bounds.min if self.start is None else self.start,
            bounds.max if self.last is None else self.last,
        )


_TEN_PERCENT: Final = ChangeParams(percentage=Fraction(10))
DEFAULT_OVERLAP: Final = ResourceChangeParams(_TEN_PERCENT, _TEN_PERCENT)


@dataclass(frozen=True, slots=True)
class ScalingInterval:
    """Maximum size of each replica at up to ``max_replicas`` replicas; only maxAllowed limits missing values."""

    max_replicas: int | None = None
    max_size: ResourceList = NOTHING


@dataclass(frozen=True, slots=True)
class EffectiveIntervals:
    """Intervals in any order, the base need of every replica, and the room to spare (overlap) for scaling in."""

    intervals: tuple[ScalingInterval, ...] = ()
    base: ResourceChangeParams = NO_PARAMS
    overlap: ResourceChangeParams = DEFAULT_OVERLAP

    def max_size(self, replicas: int) -> ResourceList:
        """Maximum size of each of ``replicas`` replicas, by the first interval that reaches this count."""
        reached = [
            interval
            for interval in self.intervals
            if interval.max_replicas is None or replicas <= interval.max_replicas
        ]
        # Intervals without an end come last.
        ordered = sorted(reached, key=lambda interval: (interval.max_replicas is None, interval.max_replicas or 0))
        return ordered[0].max_size if ordered else NOTHING


ANY_CONTAINER: Final = "*"
"""Name of the default policy."""


class UpdateMode(StrEnum):
    """Apply recommendations always, never, or only within the maintenance window."""

    AUTO = "Auto"
    OFF = "Off"
    MAINTENANCE_WINDOW = "MaintenanceWindow"


@dataclass(frozen=True, slots=True)
class DirectionRules:
    """Rules for one direction. ``delay`` is the minimum time since the last scaling in that direction."""

    mode: UpdateMode = UpdateMode.AUTO
    delay: Seconds = Seconds(0.0)
    min_change: ResourceChangeParams = NO_PARAMS


@dataclass(frozen=True, slots=True)
class AxisRules:
    """Rules for growing and shrinking on one axis."""

    up: DirectionRules = field(default=DirectionRules())
    down: DirectionRules = field(default=DirectionRules())


@dataclass(frozen=True, slots=True)
class ContainerPolicy:
    """Sizing policy of one container. If ``controls_limits`` is False, its limits do not change."""

    name: str = ANY_CONTAINER
    bounds: SizeBounds = UNBOUNDED
    resources: tuple[Resource, ...] = RESOURCES
    controls_limits: bool = True
    is_off: bool = False


@dataclass(frozen=True, slots=True)
class HvpaSpec:
    """Spec of an Hvpa.

    ``desired_by_utilization`` are the resources that the HPA measures against requests: its count falls as pods grow.
    ``settle`` is how long less must be enough before effective intervals shrink.
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
        """Policy of the container: its own, the one of ``*``, or the default."""
        # Reversed: the first policy of a name wins.
        named = {policy.name: policy for policy in reversed(self.containers)}
        return named.get(container) or named.get(ANY_CONTAINER) or ContainerPolicy()


@dataclass(frozen=True, slots=True)
class PastPods:
    """Number of ready pods and their mean ``sizes`` from ``since`` (aware) on."""

    since: datetime
    ready: int
    sizes: tuple[SizedContainer, ...] = ()


@dataclass(frozen=True, slots=True)
class PossibleSize:
    """The maximum of a container's resource, ``most``, that any pod had when a resize was refused at ``at``.

    The status has fields of these names.
    """

    container: str
    resource: Resource
    most: int
    at: Moment


@dataclass(frozen=True, slots=True)
class MeasuredCount:
    """A number of ``ready`` pods, and the use of a resource per pod over its target, last measured with it.

    ``until`` is the time at which that number changed; for the present one, the time at which it began.
    """

    until: Moment
    ready: Annotated[int, msgspec.Meta(gt=0)]
    resource: Resource
    use: Annotated[int, msgspec.Meta(gt=0)]


@dataclass(frozen=True, slots=True)
class PodsMemory:
    """Past states of the pods, latest last, since when they differ from their spec, and the largest possible sizes.

    ``counts`` are the numbers of ready pods that metrics may describe; ``lag`` is how many seconds later they last
    followed a change of that number, None if unknown.
    """

    past: tuple[PastPods, ...] = ()
    differ_since: datetime | None = None
    possible: tuple[PossibleSize, ...] = ()
    counts: tuple[MeasuredCount, ...] = ()
    lag: int | None = None

    def largest_possible(self, container: str, resource: Resource) -> int | None:
        """The largest possible size; None if no resize was refused."""
        limits = (limit.most for limit in self.possible if (limit.container, limit.resource) == (container, resource))
        return next(limits, None)


@dataclass(frozen=True, slots=True)
class PastTarget:
    """A vertical target, in thousandths of a vCPU or bytes, and the replica count that explains it."""

    container: str
    resource: Resource
    target: int
    replicas: Annotated[int, msgspec.Meta(gt=0)]


@dataclass(frozen=True, slots=True)
class PastReplicas:
    """Replica count from ``since`` on."""

    since: Moment
    replicas: Annotated[int, msgspec.Meta(gt=0)]


@dataclass(frozen=True, slots=True)
class Shrinking:
    """A waiting decrease: less of ``subject`` has been enough since ``since``, with a need of at most ``highest``."""

    subject: str
    since: Moment
    highest: Annotated[int, msgspec.Meta(ge=0)]


@dataclass(frozen=True, slots=True)
class ScalingTimes:
    """Persistent memory. ``last_up`` and ``last_down`` are the last scalings in each direction, on either axis (aware).

    The rest is for effective intervals: VPA ``targets``, decreasing replica ``counts``, waiting decreases
    (``shrinking``, at most one per subject), and past ``pods``.
    """

    last_up: datetime | None = None
    last_down: datetime | None = None
    targets: tuple[PastTarget, ...] = ()
    counts: tuple[PastReplicas, ...] = ()
    shrinking: tuple[Shrinking, ...] = ()
    pods: PodsMemory = field(default=PodsMemory())
