"""Results of the ledger: effects to carry out, decisions, reservations, and errors.

The caller must report the outcome of each effect: ``PersistPermit`` by ``PermitWritten``, a reservation's bind by
``BindEnded``, ``ReadPod`` by ``PodRead``, ``ResizePod`` by ``ResizeRefused`` or ``ResizeOutcomeUnknown``,
``CreateMigration`` by ``MigrationCreateEnded``, and ``ReadMigration`` by ``MigrationSeen``, or by a refused
``MigrationCreateEnded`` if the migration does not exist and cannot appear any more.
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
    """The ledger lacks a fact that will arrive later: 503, retry."""


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

    If ``before_answer``, the agent gets no response until the write is confirmed. Send the writes for one VM one at a
    time; only the newest ``revision`` matters. Each carries a resourceVersion, so that a write believed lost cannot
    land after a newer one. The ledger repeats the effect while its outcome is unknown. ``holders``: see ``VmFacts``.
    ``revokes``: no agent should hold the permit any more; check ``is_write_needed`` before each attempt.
    """

    vm: ObjectName
    permit: Resources
    revision: int
    before_answer: bool
    uid: str = ""
    holders: tuple[str, ...] = ()
    revokes: bool = False


@dataclass(frozen=True, slots=True)
class ResizePod:
    """Write ``size`` as the requests of the guest's container of ``pod``, only to this ``version`` of it.

    Report a certain refusal with ``ResizeRefused``; other outcomes show on the pod. ``reverts`` is the kubelet's
    verdict (``Deferred``, ``Infeasible``) on a resize that this one reverts; empty for others. ``cpu_limit`` is the
    container's new CPU limit; None keeps the present one.
    """

    uid: str
    pod: ObjectName
    size: Resources
    version: str
    reverts: str = ""
    cpu_limit: MilliCpu | None = None


@dataclass(frozen=True, slots=True)
class PodRequestsChanged:
    """A pod with a resize in flight has changed: agents that wait for its kubelet check again."""

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
    """``migration`` may or may not exist: read it from the API server."""

    migration: ObjectName


Effect = RoomFreed | ReadPod | PersistPermit | PodRequestsChanged | CreateMigration | ReadMigration
Effects = tuple[Effect, ...]


class PermitDecision(msgspec.Struct, frozen=True, gc=False):
    """Decision on one agent's request."""

    permit: Resources
    compute_unit: ComputeUnit
    migrate: bool
    persist: PersistPermit | None  # None if the API server is known to store the permit
    effects: Effects = ()
    shrink_to: Resources | None = None  # size that the VM should shrink to, if its node is short of room
    ask_again: Seconds | None = None  # shorter polling interval, because the VM may have to shrink soon
    wakes_since: Instant | None = None  # first request for a permit to wake that is granted now

    @property
    def response(self) -> PluginResponse:
        """The agent's view."""
        return PluginResponse(self.permit, self.compute_unit, self.migrate, self.shrink_to, self.ask_again)


@dataclass(frozen=True, slots=True)
class Reservation:
    """Result of a bind or move. ``verdict`` is ``Fits`` if room is reserved; otherwise ``detail`` has the numbers.

    ``needs_bind`` is False if the pod is already bound there: succeed without a call.
    """

    verdict: Verdict
    detail: str = ""
    needs_bind: bool = False
    effects: Effects = ()


class ResizeDecision(NamedTuple):
    """The resize that is needed now; None if none."""

    order: ResizePod | None
    effects: Effects = ()
