"""The ledger's facts: nodes, pods and VMs as the Kubernetes API has them, and the node's policy.

Rules that hold here:

- Facts are whole and absolute: the newest replaces all older ones, so losing any event only delays.
- ``version`` orders facts about one VM or migration; facts older than those known are ignored.
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
"""The phase of a VM whose guest runs and is neither being resized nor moved."""

WITHOUT_GUEST: Final = frozenset({"Pending", "Succeeded", "Failed"})
"""Phases of a VM in which its status may still say what an earlier guest had, and no guest has anything."""

DEFAULT_WEIGHT: Final = 10
MOST_WEIGHT: Final = 100
"""A VM's weight is 1 to this. Whoever may label VMs sets it, so it cannot be large enough to starve all others."""


class ResourceMask(NamedTuple):
    """CPU, memory, both or neither."""

    cpu: bool = False
    mem: bool = False

    @classmethod
    def of_rise(cls, lower: Resources, upper: Resources) -> ResourceMask:
        """The resources of which ``upper`` has more than ``lower``."""
        return cls(lower.cpu < upper.cpu, lower.mem < upper.mem)

    def of(self, these: Resources, others: Resources) -> Resources:
        """The chosen amounts of ``these``, the rest of ``others``."""
        return Resources(these.cpu if self.cpu else others.cpu, these.mem if self.mem else others.mem)

    def among(self, others: ResourceMask) -> ResourceMask:
        """Those that ``others`` has, too."""
        return ResourceMask(self.cpu and others.cpu, self.mem and others.mem)

    def together(self, others: ResourceMask) -> ResourceMask:
        """Those of both."""
        return ResourceMask(self.cpu or others.cpu, self.mem or others.mem)

    @property
    def any(self) -> bool:
        """True if there is one."""
        return self.cpu or self.mem


NEITHER: Final = ResourceMask()
BOTH: Final = ResourceMask(cpu=True, mem=True)


@dataclass(frozen=True, slots=True)
class ResourcePolicy(Generic[A]):
    """Reserve for the system, and watermark, of one resource of a node (S4.8).

    ``watermark`` is a fraction in (0, 1] of what pods may reserve; build it from text or ``Fraction``, since 0.7 as a
    float lies below seven tenths. Raises ``QuantityError`` outside that range.
    """

    watermark: Fraction
    system: A

    def __post_init__(self) -> None:
        if not 0 < self.watermark <= 1:
            raise QuantityError(f"a watermark is above 0 and at most 1, got {self.watermark}")

    def reservable(self, allocatable: A) -> A:
        """Part of ``allocatable`` that pods may reserve; zero if the system needs more than there is."""
        return allocatable.minus_or_zero(self.system)

    def watermark_of(self, allocatable: A) -> A:
        """The level above which reservations are pressure, rounded down."""
        # Of what pods may reserve, not of the whole node: the system's part never counts as pressure.
        return self.reservable(allocatable).scaled(self.watermark)


@dataclass(frozen=True, slots=True)
class NodePolicy:
    """Policy of one node from the ConfigMap; may be replaced at any time (S4.6, S4.8).

    At most ``wakes_at_once`` (> 0) of its VMs are given the permit to wake before their guests run; None: by its CPU.
    """

    compute_unit: ComputeUnit
    cpu: ResourcePolicy[MilliCpu]
    mem: ResourcePolicy[Bytes]
    wake_reserve: WakeReserve = DEFAULT_RESERVE
    wakes_at_once: int | None = None

    def reservable(self, allocatable: Resources) -> Resources:
        """Part of ``allocatable`` that pods of a node may reserve."""
        return Resources(self.cpu.reservable(allocatable.cpu), self.mem.reservable(allocatable.mem))

    def watermark_of(self, allocatable: Resources) -> Resources:
        """The watermark of a node with ``allocatable``."""
        return Resources(self.cpu.watermark_of(allocatable.cpu), self.mem.watermark_of(allocatable.mem))


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """A node: its ``status.allocatable``, its policy, and whether it takes new pods (False while cordoned).

    ``price`` is per hour in the currency of the settings; only ratios of prices matter (S2.1). ``traits`` are what
    pods' constraints are judged by. ``capacity`` is its ``status.capacity``: what is allocatable may shrink and grow
    below that while guests run (zero: not known).
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
        """Amount that pods may reserve now."""
        return self.policy.reservable(self.allocatable)

    @property
    def ever_reservable(self) -> Resources:
        """An upper bound of what pods may reserve now, or could at any time since the node booted."""
        # A guest that was granted more keeps it when the allocatable part shrinks under it.
        return self.reservable.at_least(self.capacity)


@dataclass(frozen=True, slots=True)
class RunnerRequests:
    """Requests of the guest's container, in a pod whose requests may be changed in place (B.10).

    ``asked`` is what its spec says, ``allocated`` what the kubelet has set aside for it (None while it says nothing).
    ``problem`` is the kubelet's objection to the requests, beginning with ``Deferred`` or ``Infeasible``; empty
    if it has none. ``is_seen`` is False while it says that it has yet to look at the requests. ``version`` is the
    pod's resourceVersion, ``by_us`` the part of ``asked`` that a scheduler of ours wrote last, ``cpu_limit`` the limit
    that one wrote (None: there is none).
    """

    asked: Resources
    allocated: Resources | None = None
    problem: str = ""
    version: str = ""
    by_us: Resources = ZERO
    is_seen: bool = True
    cpu_limit: MilliCpu | None = None

    def given_back(self, first: Resources) -> Resources:
        """Requests without what we raised: down to those the pod was created with."""
        # Others may have lowered the requests below those of the start; they are not raised again.
        return self.asked.minus_or_zero(self.by_us).at_least(first.at_most(self.asked))

    @property
    def verdict(self) -> str:
        """The kubelet's word for the problem: ``Deferred`` or ``Infeasible``; empty if there is none."""
        return self.problem.partition(":")[0]

    @property
    def held(self) -> Resources:
        """Resources that the kubelet has allocated; the requests if it does not say."""
        return self.asked if self.allocated is None else self.allocated

    @property
    def secured(self) -> Resources:
        """Resources that the pod holds on its node, whatever other schedulers and the kubelet do."""
        # While a lower request is on its way, the kubelet still holds the larger one but will let it go.
        return self.asked if self.allocated is None else self.asked.at_most(self.allocated)


@dataclass(frozen=True, slots=True)
class PodFacts:
    """A pod. ``requests`` is what kube-scheduler counts for it; ``vm`` is the VM that it runs, None for other pods.

    ``vm_uid`` tells which VM of that name; empty: the one that has it now. ``around`` is the part of ``requests`` that
    lies around the container of the guest: sidecars, further containers, overhead. ``node`` is ``spec.nodeName``;
    ``finished`` is true once the phase is Succeeded or Failed. ``migration`` is the VirtualMachineMigration that
    controls the pod, and ``migration_uid`` its UID: the pod is its target (after its success the VM owns it).
    ``scheduler`` is ``spec.schedulerName``. ``unreadable`` is why the pod's needs are not known; empty if they are.
    ``traits`` are what other pods' constraints see of it, ``unschedulable`` is why kube-scheduler finds no node for it.
    ``has_runner``: it has a container that may run a guest. ``runner`` is what that requests, None if it cannot be
    changed in place, or must not be. ``addresses`` are its own IP addresses, none for pods on
    their node's network and for those that have ended. ``deferred`` is the part of the requests of a pod
    without a VM that its kubelet has put off until there is room; ``asks_room``: VMs may be moved for it (B.14).
    ``is_leaving``: it has a deletion timestamp, and may keep it for ever if its kubelet is dead. ``boots_with`` is
    the size in its arguments, with which its guest boots whatever its VM requests later (zero: not known, or none
    boots because it is a migration's target). ``database`` is the postgres that is resized in the pod itself: then
    ``vm`` is its name, and ``vm_uid`` the pod's. ``unserved`` is why a pod that opted in to that is not resized.
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

    ``most`` is the upper bound of autoscaling, ``use`` what the spec asks for, both no more than the running machine
    can take. ``limit`` is the largest size of that machine, or of the spec if no machine is known: permits may have
    been granted up to it before ``most`` was lowered (zero: ``most`` counts). ``after_restart`` is what the spec asks
    for if that differs. ``actual`` is what the guest has (None while
    no guest runs), ``permit`` the persisted annotation. ``pod`` is ``status.podName`` as a full name. ``version``
    is the resourceVersion as a number. ``stays_because`` says why the scheduler must not move it by itself, None if
    it may; ``auto_migration`` is what the VM says about that, None if it says nothing. ``phase`` is
    ``status.phase``, ``constraints`` are what it demands of its node.
    ``is_permit_known``: it can be read; otherwise ``permit`` is its maximum. ``holders`` are UIDs: of the
    VM's pod, and of the pods whose agents may hold the permit there, the one that was answered last first; empty if
    they are not known.
    ``said`` is what the object says if that counts only in part (``believed``).
    ``has_agent``: autoscaling is enabled, so an agent may hold permits; ``granted`` is what the original's scheduler
    says that it granted the agent. ``unreadable`` is why the object cannot be read (empty if it can); then ``use``
    is its maximum, as far as that ``is_bounded``. ``is_booting``: its controller says so; ``actual`` may
    be less than what the guest boots with. ``weight`` is its part of a node's room beside others if that is short.
    ``is_pod``: a postgres in an ordinary pod. It never moves, and no permit is stored for it, since the pod's requests
    are the stored permit. ``refused`` is why it gets no more than it has; empty if it may grow.
    ``wakes_with`` is what the spec asks for of a VM with an agent that sleeps or is waking: ``use`` is zero then,
    because no guest runs before a permit for this size is stored. None if the VM is awake. ``is_waking``: its guest is
    being woken by that permit, and counts as running already.
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
    said: VmFacts | None = None
    limit: Resources = ZERO
    weight: int = DEFAULT_WEIGHT
    is_pod: bool = False
    refused: str = ""
    wakes_with: Resources | None = None
    is_waking: bool = False

    def with_permit(self, version: int, permit: Resources | None) -> VmFacts:
        """The same after a write of a permit, which has changed nothing else of the object."""
        stated = self.said and structs.replace(self.said, version=version, permit=permit)
        return structs.replace(self, version=version, permit=permit, said=stated)

    def runs_in(self, pod: ObjectName) -> bool:
        """Return True if the guest has booted in that pod; one that sleeps there has."""
        has_booted = self.actual is not None or self.phase in SLEEPING
        return self.pod == pod and has_booted and not self.is_booting

    @property
    def may_be_woken(self) -> Resources:
        """Size with which the guest may run as soon as a permit for it is stored, whoever hears of that."""
        return self.wakes_with if self.wakes_with is not None and self.phase == WAKING else ZERO


class MigrationPhase(Enum):
    """``status.phase`` of a VirtualMachineMigration; one that has no phase yet is PENDING.

    ``is_over``: the migration has ended, for good.
    """

    PENDING = "Pending"
    RUNNING = "Running"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"

    def __init__(self, text: str) -> None:
        # Made once: the planner looks at the phases of an hour's migrations every second.
        self.is_over = text in {"Succeeded", "Failed"}


@dataclass(frozen=True, slots=True)
class MigrationFacts:
    """A VirtualMachineMigration.

    ``target`` is the node that its annotation names, None if a person left the choice to placement. ``source_pod``
    and ``target_pod`` are full names from its status. ``is_leaving``: it has a deletion timestamp (it is being
    cancelled). ``is_ours``: a scheduler of ours made it. ``created_at`` and ``ended_at`` are seconds since 1970 on the
    API's clock; ``ended_at`` is None while it runs. ``dirty_rate`` is how much memory the guest changed in a second,
    None if it does not say.
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
