"""The agent protocol in one internal form, independent of the wire version (S4.4-S4.6, B.1).

Amounts are absolute and in units of ``protocol.units``. Versions before v4.0 count memory in slots, whose size only the
VM's object contains: it is an argument of the codec, and no other code deals with slots.
"""

from __future__ import annotations

import msgspec

from protocol.units import Bytes, ComputeUnit, Resources, Seconds


class ObjectName(msgspec.Struct, frozen=True, order=True, gc=False):
    """The namespace and name of one Kubernetes object; as text ``namespace/name``.

    A msgspec struct, because names are dictionary keys everywhere and a dataclass is hashed and compared in Python.
    """

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


class Metrics(msgspec.Struct, frozen=True, gc=False):
    """Load metrics of a VM. Load averages are in vCPUs; a field is None if the version or agent lacks it."""

    load1: float
    load5: float | None = None
    mem_used: Bytes | None = None


class AgentRequest(msgspec.Struct, frozen=True, gc=False):
    """The size that an agent requests for its VM, in absolute amounts, and its metrics (S4.4).

    ``resources`` are zero while the VM sleeps and so gives up its permit.
    ``last_permit`` is an absolute amount that a restarted scheduler honours, never an increment. ``compute_unit`` is
    the unit that the agent rounded to; versions before v4.0 do not contain it. ``metrics`` are optional from v1.1 on.
    ``sequence`` increases by one with every request for a pod, starting at the process's clock in nanoseconds. It
    identifies late and duplicate messages. A gap of more than 10,000 means a different process, whose messages it does
    not order.
    ``needs`` is the smallest size that suffices for the VM now. If its node is short of room, the scheduler may ask for
    the rest. Zero CPU means that the VM may sleep.
    ``sequence`` and ``needs`` are optional, because no published version has them.
    """

    pod: ObjectName
    resources: Resources
    last_permit: Resources | None = None
    compute_unit: ComputeUnit | None = None
    metrics: Metrics | None = None
    sequence: int | None = None
    needs: Resources | None = None


class PluginResponse(msgspec.Struct, frozen=True, gc=False):
    """The scheduler's answer: the VM's permit, the node's compute unit, and whether the VM is to migrate.

    ``shrink_to`` asks the VM to give room that it does not need to its neighbours; with zero CPU it asks a VM that may
    sleep to do so, and with the permit's size it asks the VM to grow only by need. ``ask_again`` asks for the next
    request within this time, so that the agent soon learns that room is short. Agents that send neither ``sequence``
    nor ``needs`` get neither.
    """

    permit: Resources
    compute_unit: ComputeUnit
    migrate: bool = False
    shrink_to: Resources | None = None
    ask_again: Seconds | None = None
