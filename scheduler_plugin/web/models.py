"""The shapes of what people read as JSON; the OpenAPI page is made of them.

Amounts are Kubernetes quantities (``{"cpu": "250m", "mem": "1Gi"}``), spans are in seconds, objects are
``namespace/name``.
"""

from __future__ import annotations

import msgspec

from protocol.wire.wire_messages import WireResources


# The garbage collector need not track these: an answer of thousands of rows has no cycles.
class Model(msgspec.Struct, frozen=True, rename="camel", gc=False):
    """A part of an answer."""


class Problem(Model, frozen=True):
    """Error of a request."""

    error: str


class BatchEntry(Model, frozen=True):
    """The answer to one request of a batch: a permit if ``status`` is 200, otherwise an error."""

    status: int
    permit: WireResources | None = None
    migrate: dict[str, msgspec.Raw] | None = None
    compute_unit: WireResources | None = None
    error: str | None = None
    retry_after: float | None = None


class Amounts(Model, frozen=True):
    """CPU and memory."""

    cpu: str
    mem: str


class PressureModel(Model, frozen=True):
    """Excess of a node over its watermark: ``excess`` still has to leave it (S4.8)."""

    logical: Amounts
    capacity: Amounts
    migrating: Amounts
    excess: Amounts


class UnreadableModel(Model, frozen=True):
    """An object that cannot be read, so that it counts as its maximum."""

    kind: str
    object: str
    version: str
    reason: str


class MigrationModel(Model, frozen=True):
    """A migration; ``problem`` is why nothing is reserved for it, or why it failed."""

    name: str
    vm: str
    phase: str
    # ``from`` is a keyword of Python.
    source: str | None = msgspec.field(name="from")
    target: str | None = msgspec.field(name="to")
    by_scheduler: bool
    leaving: bool
    seen_for_seconds: float
    reason: str
    problem: str | None
    total_seconds: float | None
    downtime_seconds: float | None


class GiftModel(Model, frozen=True):
    """Room that a VM gave back when its node was short, at ``at`` (RFC 3339).

    ``to`` are up to three VMs that lacked it most then; empty if none was denied and the node was only nearly full.
    """

    amount: Amounts
    at: str
    to: list[str]


class PodModel(Model, frozen=True):
    """Reservation of a pod on its node; ``vm`` and what follows from it are null for a pod that runs none.

    ``deferred`` is what of ``reserved`` its kubelet has put off until there is room. ``agentSilent``: the agent of its
    VM was not heard lately; always false where this process does not lead, because agents ask only the leader.
    ``promised`` is the part of ``denied`` that neighbours are about to give, ``gaveBack`` what its VM gave back last;
    null if nothing within the hour.
    """

    pod: str
    vm: str | None
    state: str
    reserved: Amounts
    permit: Amounts | None
    use: Amounts | None
    actual: Amounts | None
    denied: Amounts
    promised: Amounts
    deferred: Amounts
    migrating: bool
    agent_silent: bool
    gave_back: GiftModel | None


class NodeModel(Model, frozen=True):
    """A node as a bar; ``stuck`` is why VMs that should leave it cannot.

    ``denied`` is what its VMs lack of what they asked for, ``promised`` the part of it that others of its VMs were
    asked for and are about to give back. ``forWaking`` is free besides ``free``, for VMs that sleep there alone.
    """

    name: str
    open: bool
    known: bool
    compute_unit: Amounts | None
    total: Amounts
    reserved: Amounts
    free: Amounts
    for_waking: Amounts
    watermark: Amounts
    denied: Amounts
    promised: Amounts
    pressure: PressureModel
    stuck: str | None
    pods: list[PodModel]


class NodesModel(Model, frozen=True):
    """The cluster as the scheduler sees it. ``migrationsIdle`` is why no VM is moved at all.

    ``leading``: this process decides; otherwise ``leader`` does, and only that one knows requests and denials.
    """

    ready: bool
    leading: bool
    leader: str
    waiting_pods: int
    unreadable: list[UnreadableModel]
    migrations_idle: str | None
    migrations: list[MigrationModel]
    nodes: list[NodeModel]


class MetricsModel(Model, frozen=True):
    """The agent's last report of its guest."""

    load1: float
    load5: float | None
    mem_used: str | None


class ExplainedPod(Model, frozen=True):
    """Explanation of a VM pod's reservation and permit: ``reservedBecause`` has each floor of it by its source.

    ``requests`` are those of the guest's container, if they follow the VM; ``requestsSecured`` is what of them the
    kubelet has set aside. ``promised`` is the part of ``denied`` that neighbours were asked for and are about to give.
    ``weight`` is what the VM is worth beside others on a node that is short. ``sleep`` says what is reserved for a VM
    that sleeps or is waking, and what it waits for; null for others.
    """

    pod: str
    node: str
    state: str
    reserved: Amounts
    reserved_because: dict[str, Amounts]
    permit: Amounts | None
    permit_stored: bool
    permit_problem: str | None
    denied: Amounts
    denied_for_seconds: float | None
    denied_by: str | None
    promised: Amounts
    migrating: bool
    holds_still: bool
    weight: int
    metrics: MetricsModel | None
    requests: Amounts | None
    requests_secured: Amounts | None
    requests_problem: str | None
    sleep: str | None
    node_total: Amounts
    node_reserved: Amounts
    node_pressure: PressureModel


class RefusedTarget(Model, frozen=True):
    """A node that kube-scheduler refused for a VM's migration, and when it is tried again."""

    why: str
    again_in_seconds: float


class VmModel(Model, frozen=True):
    """Explanation of a VM's size: once for each pod that runs it (two while it migrates), and its problems.

    ``staysBecause`` is why the scheduler may not move it by itself; null if it may. ``leading`` and ``leader`` as in
    ``NodesModel``. ``makingRoom`` says who moves away for it, ``gaveBack`` what it gave to neighbours last.
    """

    vm: str
    leading: bool
    leader: str
    may_move: bool
    stays_because: str | None
    unreadable_constraints: str | None
    refused_targets: dict[str, RefusedTarget]
    problems: list[str]
    migrations_idle: str | None
    stuck: dict[str, str]
    making_room: list[str]
    gave_back: GiftModel | None
    migrations: list[MigrationModel]
    pods: list[ExplainedPod]
