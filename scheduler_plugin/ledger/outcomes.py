"""Answers of the ledger: effects for the service to carry out, decisions, reservations, and errors.

The service reports each effect's outcome back: ``PersistPermit`` by ``PermitWritten``, a reservation's bind by
``BindEnded``, ``ReadPod`` by ``PodRead``, ``ResizePod`` by ``ResizeRefused`` or ``ResizeUnanswered``,
``CreateMigration`` by ``MoveAnswered``, ``ReadMigration`` by ``MigrationSeen`` if there is one, and by a refusal in
``MoveAnswered`` if there is none and none can come.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import msgspec

from protocol.messages import ObjectName, PluginResponse
from protocol.units import ComputeUnit, Instant, MilliCpu, Resources, Seconds
from scheduler_plugin.ledger.moves import Move
from scheduler_plugin.placement.verdict import Verdict


class LedgerError(Exception):
    """The ledger cannot answer; nothing has changed."""


class UnknownPodError(LedgerError):
    """The pod holds no claim, or runs no VM: 404."""


class NotReadyError(LedgerError):
    """The ledger lacks a fact that will arrive: 503, ask again."""


class OtherAgentError(LedgerError):
    """Another agent looks after the VM: 409."""


@dataclass(frozen=True, slots=True)
class RoomFreed:
    """A pod that waits would fit on ``node`` now: touch the node's annotation, so that kube-scheduler looks again."""

    node: str


@dataclass(frozen=True, slots=True)
class ReadPod:
    """It is unknown whether this pod is bound: read it from the API and report with ``PodRead``."""

    uid: str
    pod: ObjectName


class PersistPermit(msgspec.Struct, frozen=True, gc=False):
    """Write ``permit`` into the annotation of ``vm``: all that its agent may hold.

    While ``before_answer`` the agent must not be answered until the write is confirmed. Writes for one VM go one at a
    time, only the newest ``revision`` matters, and each carries the resourceVersion that it was read with, so that a
    write that was believed lost cannot land after a newer one. The same effect comes again while its outcome is open.
    It is for the VM with ``uid`` alone, never for another one of that name. ``holders``: see ``VmFacts``.
    ``takes_back``: no agent is to hold it any more; ask ``wants`` before each try.
    """

    vm: ObjectName
    permit: Resources
    revision: int
    before_answer: bool
    uid: str = ""
    holders: tuple[str, ...] = ()
    takes_back: bool = False


@dataclass(frozen=True, slots=True)
class ResizePod:
    """Write ``size`` as the requests of the guest's container of ``pod``, onto this ``version`` of it alone.

    Report a certain refusal with ``ResizeRefused``; what else becomes of it is seen on the pod. ``withdraws`` is the
    kubelet's verdict on a wish that is taken back by it (``Deferred``, ``Infeasible``); empty for other writes.
    ``cpu_limit`` is to become the container's CPU limit; None leaves it as it is.
    """

    uid: str
    pod: ObjectName
    size: Resources
    version: str
    withdraws: str = ""
    cpu_limit: MilliCpu | None = None


@dataclass(frozen=True, slots=True)
class RequestsSeen:
    """News of a pod that has asked for more than it has: requests that wait for its kubelet look again."""

    uid: str


@dataclass(frozen=True, slots=True)
class CreateMigration:
    """Room is reserved and the source has its order: make the VirtualMachineMigration ``migration`` for ``move``.

    Its annotation names ``move.target``, so that a restarted scheduler books the same room.
    """

    migration: ObjectName
    move: Move


@dataclass(frozen=True, slots=True)
class ReadMigration:
    """It is unknown whether ``migration`` exists: read it from the API."""

    migration: ObjectName


Effect = RoomFreed | ReadPod | PersistPermit | RequestsSeen | CreateMigration | ReadMigration
Effects = tuple[Effect, ...]


class PermitDecision(msgspec.Struct, frozen=True, gc=False):
    """The answer to one agent's request. ``persist`` is None if the API is known to hold the permit already.

    ``shrink_to`` is the size that the VM is asked to shrink to, None if its node is not short. ``ask_again`` is set if
    it is to ask again sooner than usual, because it may be asked to shrink soon. ``wakes_since`` is when the agent of a
    sleeping VM began to ask for the permit that it gets now; None for other requests.
    """

    permit: Resources
    compute_unit: ComputeUnit
    migrate: bool
    persist: PersistPermit | None
    effects: Effects = ()
    shrink_to: Resources | None = None
    ask_again: Seconds | None = None
    wakes_since: Instant | None = None

    @property
    def response(self) -> PluginResponse:
        """The part that the agent sees."""
        return PluginResponse(self.permit, self.compute_unit, self.migrate, self.shrink_to, self.ask_again)


@dataclass(frozen=True, slots=True)
class Reservation:
    """The answer to a bind or a move. ``verdict`` is ``Fits`` once the room is reserved; otherwise ``detail`` says the
    numbers. ``needs_bind`` is False if the pod is known to be bound there already: answer success without a call.
    """

    verdict: Verdict
    detail: str = ""
    needs_bind: bool = False
    effects: Effects = ()


class ResizeDecision(NamedTuple):
    """The write of a pod's requests that is needed now; None if none, or not now."""

    order: ResizePod | None
    effects: Effects = ()
