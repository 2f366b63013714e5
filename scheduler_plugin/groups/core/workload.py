"""Types shared by all group policies: workloads, recommendations and decisions.

- A workload has equal replicas with the same containers and sizes. A VM has one container.
- Every amount is optional: a container may have no request, a recommendation may omit a resource.
- CPU and memory share one code path: loop over ``RESOURCES`` and read ``sizes[resource]``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from fractions import Fraction
from typing import Final, Literal, Self, TypeVar

from protocol.units import Amount, Bytes, MilliCpu

Resource = Literal["cpu", "memory"]
"""A resource by its Kubernetes name."""

RESOURCES: Final[tuple[Resource, ...]] = ("cpu", "memory")
"""Resources of container sizes."""


@dataclass(frozen=True, slots=True)
class ResourceList:
    """CPU and memory, each optional: requests, limits, or one row of a recommendation.

    >>> sizes = ResourceList(cpu=MilliCpu(500))
    >>> sizes["cpu"], sizes["memory"]
    (MilliCpu(value=500), None)
    """

    cpu: MilliCpu | None = None
    memory: Bytes | None = None

    def __getitem__(self, resource: Resource) -> Amount | None:
        return self.cpu if resource == "cpu" else self.memory

    def __bool__(self) -> bool:
        return self.cpu is not None or self.memory is not None

    def __iter__(self) -> Iterator[tuple[Resource, Amount]]:
        """Amounts that are set, CPU first."""
        return ((name, amount) for name in RESOURCES if (amount := self[name]) is not None)

    @classmethod
    def of(cls, value: Callable[[Resource], int | None]) -> ResourceList:
        """Make a list from ``value`` of each resource, in thousandths of a vCPU or bytes; None omits the resource."""
        cpu, memory = (value(resource) for resource in RESOURCES)
        return cls(None if cpu is None else MilliCpu(cpu), None if memory is None else Bytes(memory))

    def with_value(self, resource: Resource, value: int | None) -> Self:
        """Set ``resource`` to ``value`` thousandths of a vCPU or bytes; None removes it."""
        if resource == "cpu":
            return replace(self, cpu=None if value is None else MilliCpu(value))
        return replace(self, memory=None if value is None else Bytes(value))

    def map(self, change: Callable[[Resource, Amount], int | None]) -> ResourceList:
        """Apply ``change`` to each amount that is set; None removes the amount."""
        return ResourceList.of(lambda name: None if (amount := self[name]) is None else change(name, amount))

    def over(self, other: ResourceList) -> ResourceList:
        """These amounts, with missing ones taken from ``other``."""
        return ResourceList(
            other.cpu if self.cpu is None else self.cpu, other.memory if self.memory is None else self.memory
        )


NOTHING: Final = ResourceList()
"""Neither CPU nor memory."""


@dataclass(frozen=True, slots=True)
class SizedContainer:
    """One container of every replica: name, requests and limits."""

    name: str
    requests: ResourceList = NOTHING
    limits: ResourceList = NOTHING

    @property
    def sizes(self) -> ResourceList:
        """Requests, which default to the limits as in Kubernetes."""
        return self.requests.over(self.limits)

    def over(self, other: SizedContainer | None) -> SizedContainer:
        """These amounts, with missing ones taken from ``other``."""
        if other is None:
            return self
        return SizedContainer(self.name, self.requests.over(other.requests), self.limits.over(other.limits))


@dataclass(frozen=True, slots=True)
class OutOfMemory:
    """A container that was OOM-killed, the last time (aware), and the last time in each pod."""

    container: str
    at: datetime
    by_pod: tuple[datetime, ...] = ()

    def pods_since(self, begin: datetime) -> int:
        """Number of pods in which it was killed after ``begin``."""
        # Without times by pod, count one pod.
        return sum(at > begin for at in self.by_pod or (self.at,))


@dataclass(frozen=True, slots=True)
class RunningPods:
    """The actual pods of a workload.

    ``ready`` is the number of ready pods. ``sizes`` are mean requests by container, including sidecars. ``difference``
    describes how the pods differ from their spec, empty if they do not. For each refused size, ``refused`` is the
    largest size that a pod has.
    """

    ready: int
    sizes: tuple[SizedContainer, ...] = ()
    difference: str = ""
    refused: tuple[SizedContainer, ...] = ()


@dataclass(frozen=True, slots=True)
class Workload:
    """A Deployment, a StatefulSet or a group of VMs.

    ``replicas`` is the desired count, ``ready`` the number of ready replicas; both >= 0. ``out_of_memory`` are the last
    OOM kills by container since the last vertical scaling. If ``pods`` is None, they are assumed to match the spec.
    """

    replicas: int
    ready: int = 0
    containers: tuple[SizedContainer, ...] = ()
    out_of_memory: tuple[OutOfMemory, ...] = ()
    pods: RunningPods | None = None

    @property
    def serving(self) -> int:
        """Number of replicas that share the load, at least 1 because needs are divided by it."""
        return max(1, self.replicas if self.pods is None else self.pods.ready)

    def container(self, name: str) -> SizedContainer | None:
        """The container of that name; None if there is none."""
        return by_name(self.containers, name)


def amount(resource: Resource, value: int) -> Amount:
    """``value`` thousandths of a vCPU, or bytes, as an amount of ``resource``."""
    return MilliCpu(value) if resource == "cpu" else Bytes(value)


C = TypeVar("C", "SizedContainer", "ContainerRecommendation")


def by_name(containers: Iterable[C], name: str) -> C | None:
    """The first of ``containers`` with that name; None if none."""
    return next((container for container in containers if container.name == name), None)


@dataclass(frozen=True, slots=True)
class SizeBounds:
    """Bounds by resource; a missing bound is no limit. If the bounds conflict, the lower one wins."""

    min: ResourceList = NOTHING
    max: ResourceList = NOTHING

    def clamp(self, resource: Resource, value: int) -> int:
        """``value`` clamped to the bounds of ``resource``."""
        minimum, maximum = self.min[resource], self.max[resource]
        capped = value if maximum is None else min(value, maximum.value)
        # Last, so that the lower bound wins.
        return capped if minimum is None else max(capped, minimum.value)


UNBOUNDED: Final = SizeBounds()
"""No bounds."""


@dataclass(frozen=True, slots=True)
class ReplicaBounds:
    """Bounds of the replica count: ``0 <= min <= max``."""

    min: int
    max: int

    def clamp(self, replicas: int) -> int:
        """``replicas``, or the nearest count within the bounds."""
        return max(self.min, min(self.max, replicas))


ONE_REPLICA: Final = ReplicaBounds(1, 1)
"""Exactly one."""


@dataclass(frozen=True, slots=True)
class ContainerRecommendation:
    """Recommended size of one container: VPA's ``containerRecommendations``.

    ``target`` is the size to set. A size outside ``lower`` and ``upper`` should change soon. ``uncapped`` is the target
    without the resource policy's bounds.
    """

    name: str
    target: ResourceList = NOTHING
    lower: ResourceList = NOTHING
    upper: ResourceList = NOTHING
    uncapped: ResourceList = NOTHING


@dataclass(frozen=True, slots=True)
class VerticalRecommendation:
    """Recommended container sizes: VPA's ``status.recommendation``, or our recommender's.

    ``replicas`` is the replica count whose use it describes; None for the present count.
    """

    containers: tuple[ContainerRecommendation, ...] = ()
    replicas: int | None = None

    def container(self, name: str) -> ContainerRecommendation | None:
        """The recommendation for the container of that name; None if there is none."""
        return by_name(self.containers, name)


@dataclass(frozen=True, slots=True)
class MeasuredUse:
    """Mean use of the ready pods divided by the target utilization, in thousandths of a vCPU or bytes.

    It does not depend on requests. ``container`` is empty for whole pods.
    """

    resource: Resource
    need: Fraction
    container: str = ""


@dataclass(frozen=True, slots=True)
class HorizontalRecommendation:
    """Recommended replica count: HPA's ``status.desiredReplicas`` and the bounds of its spec.

    ``limited`` is True if the HPA would recommend more than ``max`` (its condition ScalingLimited). For resources that
    it measures against requests, ``ratios`` are utilization over target, and ``uses`` the same as amounts, if reported.
    An HPA truncates percentages, so each ratio may be up to ``cuts`` larger.
    """

    desired: int
    min: int = 1
    max: int = 1
    limited: bool = False
    ratios: tuple[tuple[Resource, float], ...] = ()
    cuts: tuple[tuple[Resource, float], ...] = ()
    uses: tuple[MeasuredUse, ...] = ()


@dataclass(frozen=True, slots=True)
class Recommendations:
    """Recommendations of both recommenders; None if missing or unusable."""

    horizontal: HorizontalRecommendation | None = None
    vertical: VerticalRecommendation | None = None


class Rule(StrEnum):
    """The rule that withheld a change (S1.11); its value is a condition's reason."""

    WEIGHT = "Weight"
    POLICY = "Policy"
    DELAY = "Delay"
    MIN_CHANGE = "MinChange"
    MAINTENANCE_WINDOW = "MaintenanceWindow"
    BOUNDS = "Bounds"
    UPDATE_MODE = "UpdateMode"
    PODS_DIFFER = "PodsDiffer"


@dataclass(frozen=True, slots=True)
class WithheldChange:
    """A change that a rule withheld, at least in part (S1.11): the desired value and the one that stays.

    ``subject`` is ``replicas``, or container and resource: ``postgres/cpu``. ``current`` is None if nothing is set.
    """

    subject: str
    desired: Amount | int
    current: Amount | int | None
    rule: Rule
    message: str = ""


@dataclass(frozen=True, slots=True)
class WorkloadDecision:
    """Changes to write; ``replicas`` is None if the count stays.

    ``containers`` has only changed containers, with only the amounts to write. ``explanation`` are sentences on the
    reasons for count and size.
    """

    replicas: int | None = None
    containers: tuple[SizedContainer, ...] = ()
    withheld: tuple[WithheldChange, ...] = ()
    explanation: tuple[str, ...] = ()

    @property
    def changes(self) -> bool:
        """True if there is anything to write."""
        return self.replicas is not None or bool(self.containers)

    def applied(self, workload: Workload) -> Workload:
        """``workload`` after this decision."""
        changed = [(by_name(self.containers, old.name) or old).over(old) for old in workload.containers]
        replicas = workload.replicas if self.replicas is None else self.replicas
        return replace(workload, replicas=replicas, containers=tuple(changed))


def after_kill(used: Bytes) -> Bytes:
    """Memory to recommend after an OOM kill at ``used``: 20 % more, and at least 100 MB more.

    >>> after_kill(Bytes(200_000_000)), after_kill(Bytes(1_000_000_000))
    (Bytes(value=300000000), Bytes(value=1200000000))
    """
    # VPA's bump-up ratio is 1.2, and its minimum bump-up 100 MiB.
    return Bytes(max(used.value * 120 // 100, used.value + 100_000_000))
