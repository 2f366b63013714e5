"""Facts about nodes, pods and VMs, as in the Kubernetes API, and the policy of nodes.

Rules:

- Facts are complete: the newest replaces all older ones, so a lost event only delays.
- ``version`` orders facts about one VM or migration; older ones are ignored.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from fractions import Fraction
from typing import Final, Generic, NamedTuple, TypeVar

import msgspec
from msgspec import structs

from protocol.guest.sleep import SLEEPING, WAKING
from protocol.messages import ObjectName
from protocol.names import SCHEDULER_NAME
from protocol.pod_database import PodDatabase
from protocol.units import ZERO, Amount, Bytes, ComputeUnit, MilliCpu, QuantityError, Resources
from scheduler_plugin.constraints import model
from scheduler_plugin.ledger.wake_reserve import DEFAULT_RESERVE, WakeReserve

A = TypeVar("A", bound=Amount)

RUNNING: Final = "Running"
"""Phase of a VM whose guest runs and is neither resized nor migrated."""

PRE_MIGRATING: Final = "PreMigrating"
"""Phase of a VM whose migration is being prepared."""

WITHOUT_GUEST: Final = frozenset({"Pending", "Succeeded", "Failed"})
"""Phases without a guest, in which the status may still show an earlier guest's size."""

DEFAULT_WEIGHT: Final = 10
MAX_WEIGHT: Final = 100
"""Maximum weight of a VM. Anyone who may label VMs can set it, so it must not be able to starve others."""


class ResourceMask(NamedTuple):
    """CPU, memory, both or neither."""

    cpu: bool = False
    mem: bool = False

    @classmethod
    def of_increase(cls, lower: Resources, upper: Resources) -> ResourceMask:
        """The resources that are larger in ``upper`` than in ``lower``."""
        return cls(lower.cpu < upper.cpu, lower.mem < upper.mem)

    def of(self, these: Resources, others: Resources) -> Resources:
        """Masked amounts from ``these``, the rest from ``others``."""
        return Resources(these.cpu if self.cpu else others.cpu, these.mem if self.mem else others.mem)

    def intersection(self, others: ResourceMask) -> ResourceMask:
        """Intersection."""
        return ResourceMask(self.cpu and others.cpu, self.mem and others.mem)

    def union(self, others: ResourceMask) -> ResourceMask:
        """Union."""
        return ResourceMask(self.cpu or others.cpu, self.mem or others.mem)

    @property
    def any(self) -> bool:
        """True unless empty."""
        return self.cpu or self.mem


NEITHER: Final = ResourceMask()
BOTH: Final = ResourceMask(cpu=True, mem=True)


@dataclass(frozen=True, slots=True)
class ResourcePolicy(Generic[A]):
    """System reserve and watermark for one resource of a node (S4.8).

    ``watermark`` is a fraction in (0, 1] of the room for pods. Build it from text or ``Fraction``: the float 0.7 is
    below seven tenths. Raises ``QuantityError`` outside that range.
    """

    watermark: Fraction
    system: A

    def __post_init__(self) -> None:
        if not 0 < self.watermark <= 1:
            raise QuantityError(f"a watermark is above 0 and at most 1, got {self.watermark}")

    def reservable(self, allocatable: A) -> A:
        """Part of ``allocatable`` for pods; zero if the system reserve exceeds it."""
        return allocatable.minus_or_zero(self.system)

    def watermark_of(self, allocatable: A) -> A:
        """Level above which reservations are pressure, rounded down."""
        # Of the room for pods, so that the system reserve never counts as pressure.
        return self.reservable(allocatable).scaled(self.watermark)


@dataclass(frozen=True, slots=True)
class NodePolicy:
    """Policy of one node from the ConfigMap; can change at any time (S4.6, S4.8).

    ``wakes_at_once`` (> 0) limits concurrent wakes; None: by the node's CPU.
    """

    compute_unit: ComputeUnit
    cpu: ResourcePolicy[MilliCpu]
    mem: ResourcePolicy[Bytes]
    wake_reserve: WakeReserve = DEFAULT_RESERVE
    wakes_at_once: int | None = None

    def reservable(self, allocatable: Resources) -> Resources:
        """Part of ``allocatable`` for pods."""
        return Resources(self.cpu.reservable(allocatable.cpu), self.mem.reservable(allocatable.mem))

    def watermark_of(self, allocatable: Resources) -> Resources:
        """The watermark of a node with ``allocatable``."""
        return Resources(self.cpu.watermark_of(allocatable.cpu), self.mem.watermark_of(allocatable.mem))


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """A node: ``status.allocatable``, its policy, and whether it is open to new pods (False while cordoned).

    ``price`` is per hour in the currency of the settings; only ratios matter (S2.1). ``traits`` are what constraints of
    pods refer to. ``capacity`` is ``status.capacity`` (zero: unknown); ``allocatable`` may change below it while guests
    run.
    """

    name: str
    allocatable: Resources
    policy: NodePolicy
    is_open: bool = True
    price: float = 0.0
    traits: model.NodeTraits = model.PLAIN_NODE
    capacity: Resources = ZERO

    @property
    def reservable(self) -> Resources:
        """Room for pods now."""
        return self.policy.reservable(self.allocatable)

    @property
    def ever_reservable(self) -> Resources:
        """Upper bound of the room for pods at any time since the node booted."""
        # A guest keeps its grant when allocatable shrinks.
        return self.reservable.at_least(self.capacity)


@dataclass(frozen=True, slots=True)
class RunnerRequests:
    """Requests of the guest's container, in a pod that can be resized in place (B.10)."""

    requested: Resources  # in the spec
    allocated: Resources | None = None  # by the kubelet; None if not reported
    problem: str = ""  # the kubelet's refusal, starting with ``Deferred`` or ``Infeasible``
    version: str = ""  # the pod's resourceVersion
    by_us: Resources = ZERO  # part of ``requested`` that our scheduler wrote last
    is_seen: bool = True  # False until the kubelet has processed the requests
    cpu_limit: MilliCpu | None = None

    def without_our_raise(self, first: Resources) -> Resources:
        """Requests without what we raised, at least those that the pod was created with."""
        # Others may have lowered them further; do not raise them again.
        return self.requested.minus_or_zero(self.by_us).at_least(first.at_most(self.requested))

    @property
    def verdict(self) -> str:
        """Kind of the kubelet's refusal, ``Deferred`` or ``Infeasible``; empty if none."""
        return self.problem.partition(":")[0]

    @property
    def held(self) -> Resources:
        """The amount that the kubelet has allocated; the requests if not reported."""
        return self.requested if self.allocated is None else self.allocated

    @property
    def secured(self) -> Resources:
        """The amount that the pod keeps on its node, regardless of other schedulers and the kubelet."""
        # While a lower request is in flight, the kubelet reports the larger one but will release it.
        return self.requested if self.allocated is None else self.requested.at_most(self.allocated)


@dataclass(frozen=True, slots=True)
class PodFacts:
    """A pod, as the ledger accounts for it."""

    uid: str
    name: ObjectName
    requests: Resources  # as kube-scheduler counts them
    vm: ObjectName | None = None  # the VM that the pod runs
    node: str | None = None  # spec.nodeName
    finished: bool = False  # phase Succeeded or Failed
    migration: ObjectName | None = None  # the VirtualMachineMigration that controls the pod as its target
    scheduler: str = SCHEDULER_NAME  # spec.schedulerName
    vm_uid: str = ""  # empty: the VM that has the name now
    migration_uid: str = ""
    overhead: Resources = ZERO  # part of the requests outside the guest's container: sidecars, pod overhead
    unreadable: str = ""  # why the pod cannot be read
    is_bounded: bool = True  # False if its need is unknown
    traits: model.PodTraits = model.PLAIN_POD  # what constraints of other pods refer to
    unschedulable: str = ""  # kube-scheduler's reason for finding no node
    has_runner: bool = True  # a container may run a guest
    runner: RunnerRequests | None = None  # None if requests cannot or must not be changed in place
    addresses: tuple[str, ...] = ()  # its own IPs; none for host-network and finished pods
    deferred: Resources = ZERO  # part of a resize that the kubelet has deferred, in a pod without a VM
    make_room: bool = False  # VMs may be moved for the deferred part (B.14)
    is_terminating: bool = False  # has a deletion timestamp; it may stay forever if its kubelet is dead
    boots_with: Resources = ZERO  # guest size in its arguments; zero: unknown, or a migration's target
    database: PodDatabase | None = None  # postgres resized in the pod; then ``vm`` is its name and ``vm_uid`` the pod's
    resize_problem: str = ""  # why a pod that opted in to in-place resizes is not resized


class VmFacts(msgspec.Struct, frozen=True):
    """A VirtualMachine, or a database in an ordinary pod. ``maximum`` and ``use`` are capped to the running machine."""

    name: ObjectName
    uid: str
    version: int  # resourceVersion
    maximum: Resources  # upper bound of autoscaling
    use: Resources  # size in the spec; zero while it sleeps, because no guest runs before its permit is stored
    actual: Resources | None = None  # size of the guest, if one runs
    permit: Resources | None = None  # stored annotation
    pod: ObjectName | None = None  # status.podName
    stays_because: str | None = None  # why the scheduler must not move it on its own
    auto_migration: bool | None = None  # the VM's own setting
    phase: str = RUNNING  # status.phase
    has_agent: bool = True  # autoscaling is enabled
    granted: Resources = ZERO  # grant of the original's scheduler
    unreadable: str = ""  # why the object cannot be read; then ``use`` is its maximum
    is_bounded: bool = True  # False if that maximum is unknown
    constraints: model.PodConstraints = model.UNCONSTRAINED
    first_requests: Resources | None = None  # pod requests at creation, if known
    after_restart: Resources | None = None  # size in the spec, if the running machine does not allow it
    is_permit_known: bool = True  # False if the annotation is unreadable; then ``permit`` is the maximum
    # UIDs of the VM's pod and of the pods whose agents may hold the permit, active one first; empty if unknown.
    holders: tuple[str, ...] = ()
    is_seen: bool = True  # False until the kubelet of a pod has processed ``use``
    is_booting: bool = False  # reported by its controller; the guest may boot with more than ``actual``
    declared: VmFacts | None = None  # the complete object, if it counts only in part (``effective_facts``)
    # Largest size of the running machine, or of the spec if unknown: permits up to it may date from before ``maximum``
    # was lowered. Zero: use ``maximum``.
    limit: Resources = ZERO
    weight: int = DEFAULT_WEIGHT  # priority when the node is short of room
    is_pod: bool = False  # a postgres in an ordinary pod: it never moves, and the pod's requests are its permit
    refused: str = ""  # why it cannot grow
    wakes_with: Resources | None = None  # size of a sleeping or waking VM with an agent; None if awake
    is_waking: bool = False  # the guest is starting by its stored permit, and counts as running

    def with_permit(self, version: int, permit: Resources | None) -> VmFacts:
        """The facts after a write that changed only the permit."""
        stated = self.declared and structs.replace(self.declared, version=version, permit=permit)
        return structs.replace(self, version=version, permit=permit, declared=stated)

    def runs_in(self, pod: ObjectName) -> bool:
        """Return True if the guest has booted in that pod, even if it sleeps now."""
        has_booted = self.actual is not None or self.phase in SLEEPING
        return self.pod == pod and has_booted and not self.is_booting

    @property
    def may_be_woken(self) -> Resources:
        """Size at which the guest may run as soon as a permit for it is stored, with or without a response."""
        return self.wakes_with if self.wakes_with is not None and self.phase == WAKING else ZERO


class MigrationPhase(Enum):
    """``status.phase`` of a VirtualMachineMigration; PENDING if empty.

    ``is_over``: the migration has ended.
    """

    PENDING = "Pending"
    RUNNING = "Running"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"

    def __init__(self, text: str) -> None:
        # Computed once: the planner reads the phases of an hour's migrations every second.
        self.is_over = text in {"Succeeded", "Failed"}


@dataclass(frozen=True, slots=True)
class MigrationFacts:
    """A VirtualMachineMigration. Times are Unix seconds of the API's clock."""

    name: ObjectName
    uid: str
    version: int
    vm: ObjectName
    phase: MigrationPhase = MigrationPhase.PENDING
    target: str | None = None  # node in its annotation
    source_pod: ObjectName | None = None
    target_pod: ObjectName | None = None
    is_terminating: bool = False  # has a deletion timestamp: it is being cancelled
    # Deleted, and its controller is done with it, but another finalizer keeps the object: the same as gone.
    is_released: bool = False
    is_ours: bool = False  # our scheduler created it
    created_at: float = 0.0
    ended_at: float | None = None
    dirty_rate: Bytes | None = None  # memory that the guest changes per second, if reported
