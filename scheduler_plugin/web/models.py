"""JSON models of explanations, and the schemas of the OpenAPI page.

Amounts are Kubernetes quantities (``{"cpu": "250m", "mem": "1Gi"}``), durations are in seconds, objects are
``namespace/name``.
"""

from __future__ import annotations

import msgspec

from protocol.wire.wire_messages import WireResources


# Untracked by the garbage collector: a response of thousands of rows has no cycles.
class Model(msgspec.Struct, frozen=True, rename="camel", gc=False):
    """A part of a response."""


class Problem(Model, frozen=True):
    """Error of a request."""

    error: str


class BatchEntry(Model, frozen=True):
    """Response to one request of a batch: a permit if ``status`` is 200, otherwise an error."""

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
    """Pressure of a node; ``excess`` must still leave it (S4.8)."""

    logical: Amounts
    capacity: Amounts
    migrating: Amounts
    excess: Amounts


class UnreadableModel(Model, frozen=True):
    """An object that cannot be decoded, so that it counts as its maximum."""

    kind: str
    object: str
    version: str
    reason: str


class MigrationModel(Model, frozen=True):
    """A migration; ``problem`` is why nothing is reserved for it, or why it failed."""

    name: str
    vm: str
    phase: str
    # ``from`` is a keyword.
    source: str | None = msgspec.field(name="from")
    target: str | None = msgspec.field(name="to")
    by_scheduler: bool
    leaving: bool
    seen_for_seconds: float
    reason: str
    problem: str | None
    total_seconds: float | None
    downtime_seconds: float | None


class FreedRoomModel(Model, frozen=True):
    """Room that a VM freed when its node was short, at ``at`` (RFC 3339).

    ``to`` are up to three VMs that lacked it most; empty if none was denied and the node was only nearly full.
    """

    amount: Amounts
    at: str
    to: list[str]


class PodModel(Model, frozen=True):
    """Reservation of a pod on its node; ``vm`` and its fields are null for a pod without a VM.

    ``deferred`` is the part of ``reserved`` that its kubelet has deferred. ``agentSilent`` is always false on a
    standby, because agents call only the leader. ``promised`` is the part of ``denied`` that other VMs are about to
    free. ``gaveBack`` is what its VM last freed within the hour, if anything.
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
    gave_back: FreedRoomModel | None


class NodeModel(Model, frozen=True):
    """A node; ``stuck`` is why VMs that should leave it cannot.

    ``noRoomToGrow`` names the VM that lacks the most room to grow to its maximum, and why none leaves for it; null if
    all could.

    ``denied`` is what its VMs were denied, ``promised`` the part of it that other VMs are about to free. ``forWaking``
    is room in addition to ``free``, only for VMs that sleep there.
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
    no_room_to_grow: str | None
    pods: list[PodModel]


class NodesModel(Model, frozen=True):
    """The cluster as the scheduler sees it. ``migrationsIdle`` is why no VM moves at all.

    ``leading``: this process is the leader; otherwise ``leader`` is. Only the leader knows requests and denials.
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
    """Explanation of a VM pod's reservation and permit: ``reservedBecause`` has its floors by source.

    ``requests`` are the guest container's, if they follow the VM; ``requestsSecured`` is the part that the
    kubelet has allocated. ``promised`` is the part of ``denied`` that other VMs are about to free. ``weight`` is the
    VM's part when its node is short of room. ``sleep`` describes the reservation of a sleeping or waking VM; null for
    others.
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
    """Explanation of a VM's size, for each pod that runs it (two during a migration), and its problems.

    ``staysBecause`` is why the scheduler may not move it on its own; null if it may. ``leading`` and ``leader`` as in
    ``NodesModel``. ``makingRoom`` are VMs that make room for it, ``gaveBack`` what it last freed for others.
    ``noRoomToGrow`` is why it could not grow to its maximum; null if it could.
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
    no_room_to_grow: str | None
    gave_back: FreedRoomModel | None
    migrations: list[MigrationModel]
    pods: list[ExplainedPod]
