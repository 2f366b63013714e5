"""Results of the ledger: effects to carry out, decisions, reservations, and errors.

Each effect's outcome must be reported: ``PersistPermit`` by ``PermitWritten``, a reservation's bind by ``BindEnded``,
``ReadPod`` by ``PodRead``, ``ResizePod`` by ``ResizeRefused`` or ``ResizeUnanswered``, ``CreateMigration`` by
``MoveAnswered``, ``ReadMigration`` by ``MigrationSeen``, or by a refusal in ``MoveAnswered`` if there is none and none
can appear.
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
    """The ledger cannot decide; nothing has changed."""


class UnknownPodError(LedgerError):
    """The pod has no claim, or runs no VM: 404."""


class NotReadyError(LedgerError):
    """The ledger lacks a fact that will arrive: 503, retry."""


class OtherAgentError(LedgerError):
    """Another agent controls the VM: 409."""


@dataclass(frozen=True, slots=True)
class RoomFreed:
    """A waiting pod would fit on ``node`` now: touch the node's annotation to make kube-scheduler retry."""

    node: str


@dataclass(frozen=True, slots=True)
class ReadPod:
    """The pod's bind has an unknown outcome: read the pod and report ``PodRead``."""

    uid: str
    pod: ObjectName


class PersistPermit(msgspec.Struct, frozen=True, gc=False):
    """Write ``permit``, the maximum that an agent may hold, to the annotation of ``vm`` with this ``uid``.

    If ``before_answer``, the agent gets no response until the write is confirmed. Writes for one VM go one at a time,
    and only the newest ``revision`` matters. Each carries the resourceVersion that it was read with, so that a write
    believed lost cannot land after a newer one. The effect is repeated while its outcome is unknown. ``holders``: see
    ``VmFacts``. ``takes_back``: no agent should hold it any more; check ``wants`` before each try.
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
    """Write ``size`` as the requests of the guest's container of ``pod``, only to this ``version`` of it.

    Report a certain refusal with ``ResizeRefused``; other outcomes are seen on the pod. ``withdraws`` is the kubelet's
    verdict (``Deferred``, ``Infeasible``) on a resize that this one reverts; empty for others. ``cpu_limit`` is the
    container's new CPU limit; None keeps it.
    """

    uid: str
    pod: ObjectName
    size: Resources
    version: str
    withdraws: str = ""
    cpu_limit: MilliCpu | None = None


@dataclass(frozen=True, slots=True)
class RequestsSeen:
    """A pod with requests in flight has changed: requests that wait for its kubelet are checked again."""

    uid: str


@dataclass(frozen=True, slots=True)
class CreateMigration:
    """Room is reserved: create the VirtualMachineMigration ``migration`` for ``move``.

    Its annotation names ``move.target``, so that a restarted scheduler reserves the same room.
    """

    migration: ObjectName
    move: Move


@dataclass(frozen=True, slots=True)
class ReadMigration:
    """``migration`` may or may not exist: read it from the API."""

    migration: ObjectName


Effect = RoomFreed | ReadPod | PersistPermit | RequestsSeen | CreateMigration | ReadMigration
Effects = tuple[Effect, ...]


class PermitDecision(msgspec.Struct, frozen=True, gc=False):
    """Decision on one agent's request. ``persist`` is None if the API is known to store the permit.

    ``shrink_to`` is the size that the VM should shrink to, None if its node is not short. ``ask_again`` is a shorter
    polling interval, because it may have to shrink soon. ``wakes_since`` is when the agent of a sleeping VM first asked
    for the permit that it gets now; None for other requests.
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
        """The agent's view."""
        return PluginResponse(self.permit, self.compute_unit, self.migrate, self.shrink_to, self.ask_again)


@dataclass(frozen=True, slots=True)
class Reservation:
    """Result of a bind or move. ``verdict`` is ``Fits`` once room is reserved; otherwise ``detail`` has the numbers.
    ``needs_bind`` is False if the pod is known to be bound there: succeed without a call.
    """

    verdict: Verdict
    detail: str = ""
    needs_bind: bool = False
    effects: Effects = ()


class ResizeDecision(NamedTuple):
    """The resize that is needed now; None if none."""

    order: ResizePod | None
    effects: Effects = ()
