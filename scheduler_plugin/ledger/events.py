"""Events: the input of ``Ledger.apply``, and the only way to change the accounts.

Facts are complete: each replaces all older ones about the same object. Requests get a decision. Callers must report the
outcome of every write, even if no caller waits for it any more.
"""

from __future__ import annotations

from collections.abc import Collection
from enum import Enum

import msgspec

from protocol.messages import AgentRequest, ObjectName
from protocol.ranking.config import RankingConfig
from scheduler_plugin.ledger.facts import MigrationFacts, NodeFacts, PodFacts, VmFacts
from scheduler_plugin.ledger.moves import Move
from scheduler_plugin.ledger.outcomes import ResizePod


class WriteOutcome(Enum):
    """Outcome of a write: certainly done, certainly refused, or unknown (it may still land)."""

    DONE = "done"
    REFUSED = "refused"
    UNKNOWN = "unknown"


# Facts of the Kubernetes API ------------------------------------------------------------------------------------------


class Listed(msgspec.Struct, frozen=True, gc=False):
    """Complete lists: at the start, and after each restart of a watch. The ledger is ready afterwards.

    A missing pod is gone, unless its bind may be newer than the list; then the ledger orders a read.
    """

    nodes: Collection[NodeFacts]
    pods: Collection[PodFacts]
    vms: Collection[VmFacts]
    migrations: Collection[MigrationFacts] = ()


class NodeSeen(msgspec.Struct, frozen=True, gc=False):
    """A node or its policy was added or changed."""

    node: NodeFacts


class NodeGone(msgspec.Struct, frozen=True, gc=False):
    """The node was deleted. Claims of its pods stay until the pods go."""

    node: str


class PodSeen(msgspec.Struct, frozen=True, gc=False):
    """A pod was added or changed. If it is on another node than reserved, its reservation moves there."""

    pod: PodFacts


class PodGone(msgspec.Struct, frozen=True, gc=False):
    """The pod was deleted: its room is free."""

    uid: str


class PodRead(msgspec.Struct, frozen=True, gc=False):
    """A fresh read of a pod, ordered by ``ReadPod``; None if it does not exist or has another UID."""

    uid: str
    pod: PodFacts | None


class VmSeen(msgspec.Struct, frozen=True, gc=False):
    """A VirtualMachine was added or changed."""

    vm: VmFacts


class VmGone(msgspec.Struct, frozen=True, gc=False):
    """The VirtualMachine was deleted. Its pods keep their reservations until they go."""

    vm: ObjectName


class MigrationSeen(msgspec.Struct, frozen=True, gc=False):
    """A VirtualMachineMigration was added, changed or read."""

    migration: MigrationFacts


class MigrationGone(msgspec.Struct, frozen=True, gc=False):
    """The VirtualMachineMigration was deleted: its reservation and order end."""

    migration: ObjectName


class StoreRestored(msgspec.Struct, frozen=True, gc=False):
    """The API went back to an earlier state (etcd was restored): its next facts are the newest, regardless of version.

    No decisions until the next ``Listed``.
    """


class TimePassed(msgspec.Struct, frozen=True, gc=False):
    """Timer, every few seconds: expires permits and requests of silent agents, among others."""


# Agents ---------------------------------------------------------------------------------------------------------------


class PermitRequested(msgspec.Struct, frozen=True, gc=False):
    """An agent requests a permit for the pod with this UID. Result: a ``PermitDecision``.

    ``agent`` is the UID of the agent's pod; empty if it is a sidecar in the VM's pod.
    """

    uid: str
    request: AgentRequest
    agent: str = ""


class PermitWritten(msgspec.Struct, frozen=True, gc=False):
    """Outcome of the ``PersistPermit`` with this ``revision`` for ``vm``; only DONE lets the agent get its response.

    ``facts`` is the object that the API server returned, if known: with the permit, or with another one if refused.
    ``why`` is the reason for a refusal. ``version`` is the resourceVersion of a write with unknown outcome, or 0.
    """

    vm: ObjectName
    revision: int
    outcome: WriteOutcome
    facts: VmFacts | None = None
    why: str = ""
    version: int = 0


# kube-scheduler -------------------------------------------------------------------------------------------------------


class BindRequested(msgspec.Struct, frozen=True, gc=False):
    """kube-scheduler wants to bind the pod to ``node``. Result: a ``Reservation``."""

    pod: PodFacts
    node: str


class BindEnded(msgspec.Struct, frozen=True, gc=False):
    """Outcome of a bind call. A conflict is not a certain refusal: report it as unknown."""

    uid: str
    node: str
    outcome: WriteOutcome


class PodRefused(msgspec.Struct, frozen=True, gc=False):
    """``filter`` refused the pod on all ``nodes``.

    If they are a sample and another node has room, the ledger makes kube-scheduler retry.
    """

    pod: PodFacts
    nodes: list[str]


# Moves ----------------------------------------------------------------------------------------------------------------


class MoveRequested(msgspec.Struct, frozen=True, gc=False):
    """The planner wants to migrate a VM by a migration of this name (S4.9). Result: a ``Reservation``."""

    move: Move
    migration: ObjectName


class MigrationCreateEnded(msgspec.Struct, frozen=True, gc=False):
    """Outcome of creating a migration: created, certainly not created, or unknown."""

    migration: ObjectName
    outcome: WriteOutcome


# Requests of pods (B.10) ----------------------------------------------------------------------------------------------


class RaiseRequested(msgspec.Struct, frozen=True, gc=False):
    """The pod's requests must be raised before the agent's request can be granted. Result: a ``ResizeDecision``."""

    uid: str
    request: AgentRequest


class ResizeDue(msgspec.Struct, frozen=True, gc=False):
    """The pod's requests may be wrong (``pods_to_resize``). Result: a ``ResizeDecision``."""

    uid: str


class ResizeRefused(msgspec.Struct, frozen=True, gc=False):
    """The API server certainly did not make the write; ``why`` is empty after a conflict.

    ``is_final``: it never will, so permits need not wait for this pod's requests. ``is_of_size``: it might accept a
    smaller size.
    """

    order: ResizePod
    why: str
    is_final: bool = False
    is_of_size: bool = True


class ResizeOutcomeUnknown(msgspec.Struct, frozen=True, gc=False):
    """The outcome of the write is unknown because of ``why``."""

    order: ResizePod
    why: str


# Settings -------------------------------------------------------------------------------------------------------------


class SettingsRead(msgspec.Struct, frozen=True, gc=False):
    """Scoring rules (S2.8b; prices are node facts), the ``schedulerName`` that the extender serves, and
    kube-scheduler's ``percentageOfNodesToScore`` (1-100).
    """

    ranking: RankingConfig
    scheduler: str
    percent_of_nodes: int


class RequestsFollow(msgspec.Struct, frozen=True, gc=False):
    """Start or stop to keep pod requests equal to reservations: if the settings say so, and the API server ``can``.

    If it cannot, raised requests stay as they are.
    """

    follows: bool
    can: bool = True
    limits_cpu: bool = False


class HeadroomSeen(msgspec.Struct, frozen=True, gc=False):
    """After a look at all nodes: has the cluster lacked headroom for long (``planner/headroom.py``)?"""

    is_lacking: bool


Fact = (
    Listed
    | NodeSeen
    | NodeGone
    | PodSeen
    | PodGone
    | PodRead
    | VmSeen
    | VmGone
    | MigrationSeen
    | MigrationGone
    | StoreRestored
    | TimePassed
)
Report = (
    BindEnded
    | PodRefused
    | MigrationCreateEnded
    | ResizeRefused
    | ResizeOutcomeUnknown
    | SettingsRead
    | HeadroomSeen
    | RequestsFollow
)
Event = PermitRequested | BindRequested | MoveRequested | RaiseRequested | ResizeDue | PermitWritten | Fact | Report
