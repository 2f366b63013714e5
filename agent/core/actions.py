"""Actions of the core. The runner reports ``Started`` before each, and its outcome as an event (see ``events``)."""

from __future__ import annotations

from dataclasses import dataclass

from agent.core.pods.pauses import Resource
from protocol.guest.monitor_messages import DownscaleRequest, UpscaleNotification
from protocol.messages import AgentRequest
from protocol.units import Bytes, Instant, Resources


@dataclass(frozen=True, slots=True)
class RequestPermit:
    """Send ``request`` to the scheduler, with memory in slots of ``slot_size``.

    Outcomes: ``SchedulerAnswered`` or ``RequestFailed``. One at a time.
    """

    request: AgentRequest
    slot_size: Bytes


@dataclass(frozen=True, slots=True)
class PatchVm:
    """Set the VM's ``use`` to ``target`` (in slots of ``slot_size``) if its object is still at version ``base``.

    ``reverts`` names the resource of a pod that the patch reverts because the kubelet objected.
    Outcomes: ``Patched``, ``PatchConflicted`` or ``PatchFailed``. One at a time.
    """

    target: Resources
    base: int
    slot_size: Bytes
    reverts: Resource | None = None


@dataclass(frozen=True, slots=True)
class OrderSleep:
    """Order the VM to sleep if its object is still at version ``base``. ``is_early``: the scheduler asked for it,
    because the node is short of room.

    Outcomes: ``SleepOrdered`` or ``SleepNotOrdered``. One at a time.
    """

    base: int
    is_early: bool = False


Action = RequestPermit | PatchVm | OrderSleep

MonitorMessage = DownscaleRequest | UpscaleNotification
"""A message to send to the monitor in the guest. Outcomes: ``MonitorAnswered`` or ``MonitorLost``. One at a time."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The actions due now, the time of the next plan (None: after the next event), and the reason.

    ``message`` is for the guest's monitor.
    """

    actions: tuple[Action, ...]
    wake_at: Instant | None
    because: str
    message: MonitorMessage | None = None
