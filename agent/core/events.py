"""Events of an agent. Every outcome of an action comes back as one of these."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from agent.core.actions import Action, MonitorMessage
from agent.core.guest import GuestSample
from agent.core.policy import Policy
from agent.core.vm import Vm
from protocol.codec import PluginResponseView
from protocol.guest.monitor_messages import DownscaleResult, LoadReport, UpscaleConfirmation, UpscaleRequest
from protocol.messages import PluginResponse
from protocol.units import Seconds


class Fault(StrEnum):
    """The party at fault, as far as the agent can tell."""

    AGENT = "agent"
    SCHEDULER = "scheduler"
    VM_API = "vm-api"
    GUEST = "guest"
    NETWORK = "network"
    SETTINGS = "settings"


@dataclass(frozen=True, slots=True)
class VmSeen:
    """The VM's object, read or watched."""

    vm: Vm


@dataclass(frozen=True, slots=True)
class VmRestored:
    """The VM's object as it is now is older than what was seen before: the cluster's store was restored."""

    vm: Vm


@dataclass(frozen=True, slots=True)
class CallFailed:
    """A call of the shell failed."""

    fault: Fault
    reason: str


class VmLost(CallFailed):
    """The VM's object cannot be read or decoded."""


@dataclass(frozen=True, slots=True)
class Scraped:
    """The guest's metrics arrived."""

    sample: GuestSample


class ScrapeFailed(CallFailed):
    """The guest's metrics did not arrive."""


@dataclass(frozen=True, slots=True)
class Started:
    """The shell is about to carry out ``action``: from now on it may take effect at any time."""

    action: Action | MonitorMessage


@dataclass(frozen=True, slots=True)
class Answered:
    """The scheduler answered the request in flight."""

    response: PluginResponse | PluginResponseView


@dataclass(frozen=True, slots=True)
class AskFailed(CallFailed):
    """No usable answer came; the request may or may not have been applied. ``retry_after`` is the scheduler's.

    ``is_others_turn``: the scheduler answers another agent of the VM.
    """

    retry_after: Seconds | None = None
    is_others_turn: bool = False


@dataclass(frozen=True, slots=True)
class Patched:
    """The patch took effect; the object is now ``vm``."""

    vm: Vm


@dataclass(frozen=True, slots=True)
class PatchConflicted:
    """The object had changed; the patch took no effect. A newer view will follow."""


@dataclass(frozen=True, slots=True)
class PatchFailed(CallFailed):
    """The patch failed. Unless ``refused`` (it certainly took no effect) it may still take effect."""

    refused: bool


@dataclass(frozen=True, slots=True)
class PolicySet:
    """A new policy is in force. ``problems``: settings that were asked for and could not be applied."""

    policy: Policy
    problems: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PolicyRefused:
    """New settings were refused; the old policy stays in force."""

    reason: str


@dataclass(frozen=True, slots=True)
class MonitorJoined:
    """A monitor in the guest answers, and speaks ``version``."""

    version: int


class MonitorLost(CallFailed):
    """The monitor that had answered is gone, or cannot be listened to any longer."""


@dataclass(frozen=True, slots=True)
class MonitorSaid:
    """The monitor reports, unasked, that memory is short or that a load begins."""

    message: UpscaleRequest | LoadReport


@dataclass(frozen=True, slots=True)
class MonitorAnswered:
    """The monitor answered the message in flight; ``result`` is None if it failed internally."""

    result: DownscaleResult | UpscaleConfirmation | None


Event = (
    VmSeen
    | VmRestored
    | VmLost
    | Scraped
    | ScrapeFailed
    | Started
    | Answered
    | AskFailed
    | Patched
    | PatchConflicted
    | PatchFailed
    | PolicySet
    | PolicyRefused
    | MonitorJoined
    | MonitorLost
    | MonitorSaid
    | MonitorAnswered
)
