"""Actions that the core orders. The shell reports ``Started`` before each, and an outcome after it (see ``events``)."""

from __future__ import annotations

from dataclasses import dataclass

from agent.core.pods.pauses import Resource
from protocol.guest.monitor_messages import AskToShrink, TellGrown
from protocol.messages import AgentRequest
from protocol.units import Bytes, Instant, Resources


@dataclass(frozen=True, slots=True)
class AskScheduler:
    """Send ``request`` to the scheduler, on whose wire memory counts in slots of ``slot_size``.

    Outcomes: ``Answered`` or ``AskFailed``. One at a time.
    """

    request: AgentRequest
    slot_size: Bytes


@dataclass(frozen=True, slots=True)
class PatchVm:
    """Set the VM's ``use`` to ``target`` (slots of ``slot_size``), only if its object is still at version ``base``.

    ``puts_back`` names the resource of a pod that it takes back for an objection of the kubelet.
    Outcomes: ``Patched``, ``PatchConflicted`` or ``PatchFailed``. One at a time.
    """

    target: Resources
    base: int
    slot_size: Bytes
    puts_back: Resource | None = None


Action = AskScheduler | PatchVm

MonitorMessage = AskToShrink | TellGrown
"""A message to send to the monitor in the guest. Outcomes: ``MonitorAnswered`` or ``MonitorLost``. One at a time."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The actions due now, when to plan again if no event comes first (None: only an event helps), and the reason.

    ``message`` is for the monitor in the guest.
    """

    actions: tuple[Action, ...]
    wake_at: Instant | None
    because: str
    message: MonitorMessage | None = None
