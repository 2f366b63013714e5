"""All that the ledger hears: ``Ledger.apply`` takes one of these events, and nothing else changes the books.

Facts are whole and absolute, and each replaces all older ones about the same object. What the ledger is asked gets a
decision. How a write ended is reported to the ledger whoever waited for it.
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


class WriteEnd(Enum):
    """End of a write: done for certain, refused for certain, or unknown (it may still land)."""

    DONE = "done"
    REFUSED = "refused"
    UNKNOWN = "unknown"


# Facts of the Kubernetes API ------------------------------------------------------------------------------------------


class Listed(msgspec.Struct, frozen=True, gc=False):
    """Complete lists: at the start, and whenever a watch had to list again. The ledger is ready afterwards.

    A pod that is missing is gone, unless its bind is younger than the list may be: that one is read again.
    """

    nodes: Collection[NodeFacts]
    pods: Collection[PodFacts]
    vms: Collection[VmFacts]
    migrations: Collection[MigrationFacts] = ()


class NodeSeen(msgspec.Struct, frozen=True, gc=False):
    """A node appeared or changed, or its policy did."""

    node: NodeFacts


class NodeGone(msgspec.Struct, frozen=True, gc=False):
    """The node was deleted. Claims of pods still named on it stay on its book until the pods go."""

    node: str


class PodSeen(msgspec.Struct, frozen=True, gc=False):
    """A pod appeared or changed. One that is on another node than reserved takes its reservation along."""

    pod: PodFacts


class PodGone(msgspec.Struct, frozen=True, gc=False):
    """The pod was deleted: whatever it held is free."""

    uid: str


class PodRead(msgspec.Struct, frozen=True, gc=False):
    """A fresh read of a pod, as ``ReadPod`` orders; None if there is no such pod (or one with another UID)."""

    uid: str
    pod: PodFacts | None


class VmSeen(msgspec.Struct, frozen=True, gc=False):
    """A VirtualMachine appeared or changed."""

    vm: VmFacts


class VmGone(msgspec.Struct, frozen=True, gc=False):
    """The VirtualMachine was deleted. Its pods hold their reservations until they go."""

    vm: ObjectName


class MigrationSeen(msgspec.Struct, frozen=True, gc=False):
    """A VirtualMachineMigration appeared or changed, or was read."""

    migration: MigrationFacts


class MigrationGone(msgspec.Struct, frozen=True, gc=False):
    """The VirtualMachineMigration was deleted: its reservation and its order end."""

    migration: ObjectName


class VersionsForgotten(msgspec.Struct, frozen=True, gc=False):
    """The API has gone back to an earlier state (its store was restored): what it says next is the newest there is.

    Nothing is decided until complete lists have been taken in (``Listed``).
    """


class TimePassed(msgspec.Struct, frozen=True, gc=False):
    """Time to end promises to agents not heard from since a rebuild, and wishes of those that have fallen silent.

    Due every few seconds.
    """


# Agents ---------------------------------------------------------------------------------------------------------------


class AgentAsked(msgspec.Struct, frozen=True, gc=False):
    """A request of an ``agent``, by the UID of its pod; without ``agent`` it is the one in the VM's pod.

    Answered by a ``PermitDecision``.
    """

    uid: str
    request: AgentRequest
    agent: str = ""


class PermitWritten(msgspec.Struct, frozen=True, gc=False):
    """A ``PersistPermit`` of this ``revision`` for ``vm`` has ended; unless it is done, the agent gets no answer.

    ``facts`` is the object as the API returned it: with the permit if it is done, with something else if the permit was
    refused, None if it is not known. ``why`` is why it was refused. ``version`` is the resourceVersion that a write
    with an unknown outcome named, 0 if that is not known.
    """

    vm: ObjectName
    revision: int
    outcome: WriteEnd
    facts: VmFacts | None = None
    why: str = ""
    version: int = 0


# kube-scheduler -------------------------------------------------------------------------------------------------------


class PodToBind(msgspec.Struct, frozen=True, gc=False):
    """kube-scheduler wants the pod on ``node``. Answered by a ``Reservation``."""

    pod: PodFacts
    node: str


class BindEnded(msgspec.Struct, frozen=True, gc=False):
    """The API has answered a bind, or not. A conflict is no certain refusal: its outcome is unknown."""

    uid: str
    node: str
    outcome: WriteEnd


class PodRefused(msgspec.Struct, frozen=True, gc=False):
    """``filter`` refused the pod on all ``nodes``.

    If they are a sample and others have room, kube-scheduler is made to look again.
    """

    pod: PodFacts
    nodes: list[str]


# Moves ----------------------------------------------------------------------------------------------------------------


class MoveWanted(msgspec.Struct, frozen=True, gc=False):
    """The planner wants a VM moved, by a migration of this name (S4.9). Answered by a ``Reservation``."""

    move: Move
    migration: ObjectName


class MoveAnswered(msgspec.Struct, frozen=True, gc=False):
    """The API made a migration that we ordered, certainly did not or was never asked to, or may have made it."""

    migration: ObjectName
    outcome: WriteEnd


# Requests of pods (B.10) ----------------------------------------------------------------------------------------------


class RaiseWanted(msgspec.Struct, frozen=True, gc=False):
    """The pod's requests have to hold what the agent asks for first. Answered by a ``ResizeDecision``."""

    uid: str
    request: AgentRequest


class ResizeDue(msgspec.Struct, frozen=True, gc=False):
    """The pod's requests may not be what they should be (``requests_astray``). Answered by a ``ResizeDecision``."""

    uid: str


class ResizeRefused(msgspec.Struct, frozen=True, gc=False):
    """The API server certainly did not make the write; ``why`` is empty if the pod had changed.

    ``is_final``: it never will, so that permits do not depend on this pod's requests. ``is_of_size``: it might have
    accepted a smaller one.
    """

    order: ResizePod
    why: str
    is_final: bool = False
    is_of_size: bool = True


class ResizeUnanswered(msgspec.Struct, frozen=True, gc=False):
    """The outcome of the write is unknown, for the reason ``why``."""

    order: ResizePod
    why: str


# Settings -------------------------------------------------------------------------------------------------------------


class SettingsRead(msgspec.Struct, frozen=True, gc=False):
    """Scoring rules (S2.8b; prices come with the nodes), the ``schedulerName`` of pods that the extender places, and
    the part of the nodes that the kube-scheduler that asks looks at (1-100).
    """

    ranking: RankingConfig
    scheduler: str
    percent_of_nodes: int


class RequestsFollow(msgspec.Struct, frozen=True, gc=False):
    """The requests of pods follow reservations, or no longer: the settings say so, and the API server ``can``.

    If it cannot, raised requests stay as they are.
    """

    follows: bool
    can: bool = True
    limits_cpu: bool = False


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
    | VersionsForgotten
    | TimePassed
)
Report = BindEnded | PodRefused | MoveAnswered | ResizeRefused | ResizeUnanswered | SettingsRead | RequestsFollow
Event = AgentAsked | PodToBind | MoveWanted | RaiseWanted | ResizeDue | PermitWritten | Fact | Report
