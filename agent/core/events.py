"""Events of an agent, including the outcome of every action."""

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
    """The VM's object is older than the last one seen: the cluster's store was restored from a backup."""

    vm: Vm


@dataclass(frozen=True, slots=True)
class CallFailed:
    """A call through a port failed."""

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
    """``action`` is about to be executed, and may take effect at any time from now on."""

    action: Action | MonitorMessage


@dataclass(frozen=True, slots=True)
class SchedulerAnswered:
    """The scheduler answered the request in flight."""

    response: PluginResponse | PluginResponseView


@dataclass(frozen=True, slots=True)
class RequestFailed(CallFailed):
    """The request failed, but may have been applied. ``retry_after`` comes from the scheduler.

    ``is_superseded``: the scheduler now serves another agent of the VM.
    """

    retry_after: Seconds | None = None
    is_superseded: bool = False


@dataclass(frozen=True, slots=True)
class Patched:
    """The patch took effect; the object is now ``vm``."""

    vm: Vm


@dataclass(frozen=True, slots=True)
class PatchConflicted:
    """The patch had no effect, usually because the object had changed; then a newer view follows."""

    reason: str = ""


@dataclass(frozen=True, slots=True)
class PatchFailed(CallFailed):
    """The patch failed. If ``refused``, it had no effect; otherwise its outcome is unknown."""

    refused: bool


@dataclass(frozen=True, slots=True)
class SleepOrdered:
    """The order to sleep was written; the object is now ``vm``."""

    vm: Vm


class SleepNotOrdered(CallFailed):
    """Writing the order to sleep failed, or its outcome is unknown until a newer view."""


@dataclass(frozen=True, slots=True)
class WindowChanged:
    """The policy's window that keeps the VM awake has changed; None if none applies."""

    window: str | None


@dataclass(frozen=True, slots=True)
class PolicySet:
    """A new policy applies. ``problems`` lists settings that could not be applied."""

    policy: Policy
    problems: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PolicyRefused:
    """A new policy is invalid; the previous one stays in force."""

    reason: str


@dataclass(frozen=True, slots=True)
class MonitorJoined:
    """Connected to the guest's monitor, with protocol ``version``."""

    version: int


class MonitorLost(CallFailed):
    """The connection to the guest's monitor ended or was closed for misbehaviour."""


@dataclass(frozen=True, slots=True)
class MonitorNotified:
    """An unsolicited message from the monitor: memory is short, or load is rising."""

    message: UpscaleRequest | LoadReport


@dataclass(frozen=True, slots=True)
class MonitorAnswered:
    """The monitor answered the message in flight; ``result`` is None after an internal error."""

    result: DownscaleResult | UpscaleConfirmation | None


Event = (
    VmSeen
    | VmRestored
    | VmLost
    | Scraped
    | ScrapeFailed
    | Started
    | SchedulerAnswered
    | RequestFailed
    | Patched
    | PatchConflicted
    | PatchFailed
    | SleepOrdered
    | SleepNotOrdered
    | WindowChanged
    | PolicySet
    | PolicyRefused
    | MonitorJoined
    | MonitorLost
    | MonitorNotified
    | MonitorAnswered
)
