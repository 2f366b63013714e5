"""The agent protocol in one internal form, whatever wire version it travelled in (S4.4-S4.6, B.1).

Amounts here are absolute and in units of ``protocol.units``. Versions before v4.0 count memory in slots, whose size
only the VM's object knows: the codec takes it as an argument and no code past the codec sees a slot.
"""

from __future__ import annotations

import msgspec

from protocol.units import Bytes, ComputeUnit, Resources, Seconds


class ObjectName(msgspec.Struct, frozen=True, order=True, gc=False):
    """The namespace and name of one Kubernetes object; written ``namespace/name``.

    A struct of msgspec's: names are keys everywhere, and a dataclass is hashed and compared in Python.
    """

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


class Metrics(msgspec.Struct, frozen=True, gc=False):
    """Load metrics of a VM. Load averages in vCPUs; a field is None if the version or agent lacks it."""

    load1: float
    load5: float | None = None
    mem_used: Bytes | None = None


class AgentRequest(msgspec.Struct, frozen=True, gc=False):
    """An agent's wish for its VM, absolute, and what it saw (S4.4).

    ``resources`` are zero while the VM sleeps: it gives up its permit.
    ``last_permit`` is an absolute floor that a restarted scheduler honours, never an increment. ``compute_unit`` is
    what the agent used to round; versions before v4.0 do not say. ``metrics`` may be missing from v1.1 on.
    ``sequence`` rises by one with every request for a pod; a process starts at its clock in nanoseconds. It identifies
    late and doubled messages. A gap of more than 10,000 means another process, whose messages cannot be ordered by it.
    ``needs`` is the least size that the VM can do with now; a scheduler whose node is short may ask for the rest. No
    CPU means that it may sleep.
    No published version has these two, so they may be missing.
    """

    pod: ObjectName
    resources: Resources
    last_permit: Resources | None = None
    compute_unit: ComputeUnit | None = None
    metrics: Metrics | None = None
    sequence: int | None = None
    needs: Resources | None = None


class PluginResponse(msgspec.Struct, frozen=True, gc=False):
    """The scheduler's answer: what the VM may use, the node's compute unit, and whether the VM is to migrate.

    ``shrink_to`` asks the VM to leave room to its neighbours, as far as it does not need it; without CPU it asks a VM
    that may sleep to do so. ``ask_again`` asks it to send
    the next request within this time, so that it hears of a lack of room soon. Only an agent that says what its VM
    ``needs`` gets either.
    """

    permit: Resources
    compute_unit: ComputeUnit
    migrate: bool = False
    shrink_to: Resources | None = None
    ask_again: Seconds | None = None
