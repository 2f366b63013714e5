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

WITHOUT_GUEST: Final = frozenset({"Pending", "Succeeded", "Failed"})
"""Phases without a guest, in which the status may still show an earlier guest's size."""

DEFAULT_WEIGHT: Final = 10
MOST_WEIGHT: Final = 100
"""Maximum weight of a VM. Anyone who may label VMs can set it, so it must not be able to starve others."""


class ResourceMask(NamedTuple):
    """CPU, memory, both or neither."""

    cpu: bool = False
    mem: bool = False

    @classmethod
    def of_rise(cls, lower: Resources, upper: Resources) -> ResourceMask:
        """The resources that are larger in ``upper`` than in ``lower``."""
        return cls(lower.cpu < upper.cpu, lower.mem < upper.mem)

    def of(self, these: Resources, others: Resources) -> Resources:
        """Masked amounts from ``these``, the rest from ``others``."""
        return Resources(these.cpu if self.cpu else others.cpu, these.mem if self.mem else others.mem)

    def among(self, others: ResourceMask) -> ResourceMask:
        """Intersection."""
        return ResourceMask(self.cpu and others.cpu, self.mem and others.mem)

    def together(self, others: ResourceMask) -> ResourceMask:
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
    """Requests of the guest's container, in a pod that can be resized in place (B.10).

    ``requested`` is from the spec, ``allocated`` what the kubelet has allocated (None if not reported). ``problem`` is
    the kubelet's refusal, starting with ``Deferred`` or ``Infeasible``; empty if none. ``is_seen`` is False until the
    kubelet has processed the requests. ``version`` is the pod's resourceVersion, ``by_us`` the part of ``requested``
    that our scheduler wrote last, ``cpu_limit`` its CPU limit (None: none).
    """

    requested: Resources
    allocated: Resources | None = None
    problem: str = ""
    version: str = ""
    by_us: Resources = ZERO
    is_seen: bool = True
    cpu_limit: MilliCpu | None = None

    def given_back(self, first: Resources) -> Resources:
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
        """The amount that the pod keeps on its node, whatever other schedulers and the kubelet do."""
        # While a lower request is in flight, the kubelet reports the larger one but will release it.
        return self.requested if self.allocated is None else self.requested.at_most(self.allocated)


@dataclass(frozen=True, slots=True)
class PodFacts:
    """A pod. ``requests`` is what kube-scheduler counts; ``vm`` is the VM that it runs, None for other pods.

    ``vm_uid`` is the VM's UID; empty: the VM that has the name now. ``around`` is the part of ``requests`` outside the
    guest's container: sidecars, other containers, overhead. ``node`` is ``spec.nodeName``, ``scheduler`` is
    ``spec.schedulerName``. ``finished``: phase Succeeded or Failed. ``migration`` is the VirtualMachineMigration that
    controls the pod as its target, ``migration_uid`` its UID (after success the VM owns the pod). ``unreadable`` is why
    the pod's need is unknown; empty if it is known. ``traits`` are what constraints of other pods refer to.
    ``unschedulable`` is why kube-scheduler finds no node for it. ``has_runner``: a container may run a guest.
    ``runner`` are its requests; None if they cannot or must not be changed in place. ``addresses`` are its own IPs;
    none for host-network and finished pods. ``deferred`` is the part of a resize that the kubelet has deferred, in a
    pod without a VM; ``asks_room``: VMs may be moved for it (B.14). ``is_leaving``: it has a deletion timestamp,
    possibly for ever if its kubelet is dead. ``boots_with`` is the size in its arguments with which its guest boots
    (zero: unknown, or a migration's target). ``database`` is the postgres resized in the pod itself; then ``vm`` is its
    name and ``vm_uid`` the pod's. ``unserved`` is why a pod that opted in to that is not resized.
    """

    uid: str
    name: ObjectName
    requests: Resources
    vm: ObjectName | None = None
    node: str | None = None
    finished: bool = False
    migration: ObjectName | None = None
    scheduler: str = SCHEDULER_NAME
    vm_uid: str = ""
    migration_uid: str = ""
    around: Resources = ZERO
    unreadable: str = ""
    traits: model.PodTraits = model.PLAIN_POD
    unschedulable: str = ""
    has_runner: bool = True
    runner: RunnerRequests | None = None
    addresses: tuple[str, ...] = ()
    deferred: Resources = ZERO
    asks_room: bool = False
    is_leaving: bool = False
    boots_with: Resources = ZERO
    database: PodDatabase | None = None
    unserved: str = ""


class VmFacts(msgspec.Struct, frozen=True):
    """A VirtualMachine.

    ``most`` is the upper bound of autoscaling and ``use`` what the spec requests, both capped to the running machine.
    ``limit`` is the largest size of that machine, or of the spec if unknown: permits up to it may date from before
    ``most`` was lowered (zero: use ``most``). ``after_restart`` is what the spec requests, if that differs. ``actual``
    is what the guest has (None without a guest), ``permit`` the stored annotation. ``pod`` is ``status.podName`` as a
    full name, ``phase`` is ``status.phase``, ``version`` the resourceVersion. ``constraints`` are its node constraints.
    ``stays_because`` is why the scheduler must not move it by itself, None if it may; ``auto_migration`` is the VM's
    own setting, None if unset. ``is_permit_known``: the annotation is readable; otherwise ``permit`` is the maximum.
    ``holders`` are UIDs: of the VM's pod and of the pods whose agents may hold the permit, the active one first; empty
    if unknown. ``declared`` is the complete object if it counts only in part (``believed``). ``has_agent``: autoscaling
    is enabled; ``granted`` is the grant of the original's scheduler. ``unreadable`` is why the object cannot be read,
    empty if it can; then ``use`` is its maximum, if that ``is_bounded``. ``is_booting``: by its controller; the guest
    may boot with more than ``actual``. ``weight`` is its part when the node is short of room. ``is_pod``: a postgres in
    an ordinary pod. It never moves, and the pod's requests are its stored permit. ``refused`` is why it cannot grow;
    empty if it can. ``wakes_with`` is the size of a sleeping or waking VM with an agent, None if awake; ``use`` is zero
    then, because no guest runs before a permit for that size is stored. ``is_waking``: the guest is being started by
    that permit, and counts as running.
    """

    name: ObjectName
    uid: str
    version: int
    most: Resources
    use: Resources
    actual: Resources | None = None
    permit: Resources | None = None
    pod: ObjectName | None = None
    stays_because: str | None = None
    auto_migration: bool | None = None
    phase: str = RUNNING
    has_agent: bool = True
    granted: Resources = ZERO
    unreadable: str = ""
    is_bounded: bool = True
    constraints: model.PodConstraints = model.UNCONSTRAINED
    first_requests: Resources | None = None
    after_restart: Resources | None = None
    is_permit_known: bool = True
    holders: tuple[str, ...] = ()
    is_booting: bool = False
    declared: VmFacts | None = None
    limit: Resources = ZERO
    weight: int = DEFAULT_WEIGHT
    is_pod: bool = False
    refused: str = ""
    wakes_with: Resources | None = None
    is_waking: bool = False

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
    """A VirtualMachineMigration.

    ``target`` is the node in its annotation, None if unset. ``source_pod`` and ``target_pod`` are full names from its
    status. ``is_leaving``: it has a deletion timestamp, so it is being cancelled. ``is_ours``: our scheduler created
    it. ``created_at`` and ``ended_at`` are Unix seconds of the API's clock; ``ended_at`` is None while it runs.
    ``dirty_rate`` is the memory that the guest changes per second, None if not reported.
    """

    name: ObjectName
    uid: str
    version: int
    vm: ObjectName
    phase: MigrationPhase = MigrationPhase.PENDING
    target: str | None = None
    source_pod: ObjectName | None = None
    target_pod: ObjectName | None = None
    is_leaving: bool = False
    is_ours: bool = False
    created_at: float = 0.0
    ended_at: float | None = None
    dirty_rate: Bytes | None = None
