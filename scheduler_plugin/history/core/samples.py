"""Samples of VMs and nodes at one time, and records of decisions and migrations.

A sample is a row of amounts in the order of its columns; None is unknown.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final

import msgspec

from protocol.kubernetes.objects import JsonObject, child, text
from protocol.messages import ObjectName
from protocol.units import Bytes, MilliCpu, QuantityError, Resources

Millis = int
"""Unix time or duration, in milliseconds."""

SECOND: Final[Millis] = 1000
MINUTE: Final = 60 * SECOND
HOUR: Final = 60 * MINUTE
DAY: Final = 24 * HOUR

Amount = int
"""Milli-vCPUs or KiB, by the column."""

Row = tuple[Amount | None, ...]
"""Amounts of one sample, in the order of its columns."""


def _columns(*kinds: str) -> tuple[str, ...]:
    return tuple(f"{kind}_{resource}" for kind in kinds for resource in ("cpu", "mem"))


VM_COLUMNS: Final = _columns("size", "need", "permit", "reserved", "used")
"""``size`` is ``use`` in the VM's ``spec.guest``, ``need`` is from its agent, ``permit`` and ``reserved`` are from the
scheduler, ``used`` is from the guest.
"""

NODE_COLUMNS: Final = _columns("total", "reserved", "used", "watermark")
"""``total`` is the room for pods, ``used`` the sizes of the node's VMs."""

COLUMN_INDEX: Final[Mapping[str, int]] = MappingProxyType({name: place for place, name in enumerate(VM_COLUMNS)})
NODE_COLUMN_INDEX: Final[Mapping[str, int]] = MappingProxyType({name: place for place, name in enumerate(NODE_COLUMNS)})


IN_USE: Final = (("reserved_cpu", "used_cpu"), ("reserved_mem", "used_mem"))
"""Columns of reservations, each with the use to compare it with."""


class Size(msgspec.Struct, frozen=True, gc=False):
    """CPU in milli-vCPUs and memory in KiB."""

    cpu: Amount
    mem: Amount

    @classmethod
    def of(cls, resources: Resources) -> Size:
        """Convert ``resources``; memory is rounded up to KiB.

        >>> Size.of(Resources.parse("1500m", "2Gi"))
        Size(cpu=1500, mem=2097152)
        """
        # Rounded up, so that no memory looks like none.
        return cls(resources.cpu.value, -(-resources.mem.value // 1024))

    def __add__(self, other: Size) -> Size:
        return Size(self.cpu + other.cpu, self.mem + other.mem)

    @property
    def resources(self) -> Resources:
        """The amounts as quantities."""
        return Resources(MilliCpu(self.cpu), Bytes(self.mem * 1024))


def size_at(source: JsonObject, *path: str) -> Size | None:
    """Amounts ``{"cpu": …, "mem": …}`` at ``path``; None if missing.

    >>> size_at({"permit": {"cpu": "2", "mem": "4Mi"}}, "permit")
    Size(cpu=2000, mem=4096)
    """
    amounts = child(source, *path)
    try:
        return Size.of(Resources.parse(text(amounts, "cpu"), text(amounts, "mem")))
    except QuantityError:
        return None


class VmRecord(msgspec.Struct, frozen=True, gc=False):
    """Facts on a VM that change rarely; an empty text or None is unknown.

    ``labels`` are the recorded ones, sorted by key. ``uid`` distinguishes recreated VMs. ``asleep`` is known only in a
    recorded history.
    """

    vm: ObjectName
    node: str = ""
    group: str = ""
    least: Size | None = None
    most: Size | None = None
    labels: tuple[tuple[str, str], ...] = ()
    uid: str = ""
    asleep: bool = False


class NodeRecord(msgspec.Struct, frozen=True, gc=False):
    """A node and its price keys: ``machine`` is its instance type, ``groups`` are more specific keys."""

    node: str
    machine: str = ""
    groups: tuple[str, ...] = ()

    @classmethod
    def of(cls, node: str, keys: Sequence[str]) -> NodeRecord:
        """Make a record from the price keys of a node's labels, most specific first.

        >>> NodeRecord.of("n1", ("pool", "m5"))
        NodeRecord(node='n1', machine='m5', groups=('pool',))
        """
        # The instance type is last, as the least specific.
        return cls(node, keys[-1], tuple(keys[:-1])) if keys else cls(node)

    @property
    def price_keys(self) -> tuple[str, ...]:
        """Keys of the node in a price table, its name first."""
        return (self.node, *self.groups, self.machine)


class DecisionRecord(msgspec.Struct, frozen=True, gc=False):
    """A decision on a VM, ``by`` its agent or the scheduler.

    ``sentences`` are as in ``explain``, the summary first. ``size`` is the VM's size at that time. ``denied`` is
    True if the VM got less than requested.
    """

    at: Millis
    vm: ObjectName
    by: str
    sentences: tuple[str, ...] = msgspec.field(name="said")  # the key in recorded files
    size: Size | None = None
    denied: bool = False


class MoveRecord(msgspec.Struct, frozen=True, gc=False):
    """A migration. ``until`` is its end, or when it was last observed. ``downtime`` is in milliseconds."""

    name: ObjectName
    vm: ObjectName
    source: str
    target: str
    phase: str
    since: Millis
    until: Millis
    reason: str = ""
    downtime: Millis | None = None
