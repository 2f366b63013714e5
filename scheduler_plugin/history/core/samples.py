"""Samples of VMs and nodes at one moment, and records of decisions and migrations.

A sample is a row of amounts in the order of its columns; None is an amount that was not seen.
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
"""A moment in milliseconds since 1970, or a span of milliseconds."""

SECOND: Final[Millis] = 1000
MINUTE: Final = 60 * SECOND
HOUR: Final = 60 * MINUTE
DAY: Final = 24 * HOUR

Amount = int
"""Milli-vCPUs or KiB, by the column."""

Row = tuple[Amount | None, ...]
"""The amounts of one sample, in the order of its columns."""


def _columns(*kinds: str) -> tuple[str, ...]:
    return tuple(f"{kind}_{resource}" for kind in kinds for resource in ("cpu", "mem"))


VM_COLUMNS: Final = _columns("size", "need", "permit", "reserved", "used")
"""``size``: what a VM has been given (``spec.guest``'s ``use``); ``need``: what it asks for, by its agent's account;
``permit`` and ``reserved``: as the scheduler has them; ``used``: what the guest uses.
"""

NODE_COLUMNS: Final = _columns("total", "reserved", "used", "watermark")
"""``total`` is what pods may reserve, ``used`` the sizes of the node's VMs."""

PLACE: Final[Mapping[str, int]] = MappingProxyType({name: place for place, name in enumerate(VM_COLUMNS)})
NODE_PLACE: Final[Mapping[str, int]] = MappingProxyType({name: place for place, name in enumerate(NODE_COLUMNS)})


IN_USE: Final = (("reserved_cpu", "used_cpu"), ("reserved_mem", "used_mem"))
"""Reservations, and the uses by guests that they are compared with while those are known."""


class Size(msgspec.Struct, frozen=True, gc=False):
    """CPU in milli-vCPUs and memory in KiB."""

    cpu: Amount
    mem: Amount

    @classmethod
    def of(cls, resources: Resources) -> Size:
        """Memory rounds up to the KiB.

        >>> Size.of(Resources.parse("1500m", "2Gi"))
        Size(cpu=1500, mem=2097152)
        """
        # Otherwise a VM with memory could seem to have none.
        return cls(resources.cpu.value, -(-resources.mem.value // 1024))

    def __add__(self, other: Size) -> Size:
        return Size(self.cpu + other.cpu, self.mem + other.mem)

    @property
    def resources(self) -> Resources:
        """The amounts as quantities."""
        return Resources(MilliCpu(self.cpu), Bytes(self.mem * 1024))


def size_at(source: JsonObject, *path: str) -> Size | None:
    """The amounts ``{"cpu": …, "mem": …}`` at ``path``; None if there are none.

    >>> size_at({"permit": {"cpu": "2", "mem": "4Mi"}}, "permit")
    Size(cpu=2000, mem=4096)
    """
    amounts = child(source, *path)
    try:
        return Size.of(Resources.parse(text(amounts, "cpu"), text(amounts, "mem")))
    except QuantityError:
        return None


class VmRecord(msgspec.Struct, frozen=True, gc=False):
    """Node and owner of a VM; ``node``, ``group`` and the bounds may be unknown (empty, None).

    ``labels`` are those to record, sorted by key. ``uid`` tells a recreated VM from the old one of the same name; empty
    if it is not known. ``asleep``: it sleeps, which only a history that was recorded knows.
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
    """A node and the keys of its price: ``machine`` is its instance type, ``groups`` are more specific than that."""

    node: str
    machine: str = ""
    groups: tuple[str, ...] = ()

    @classmethod
    def of(cls, node: str, keys: Sequence[str]) -> NodeRecord:
        """The node with the price keys of its labels, most specific first.

        >>> NodeRecord.of("n1", ("pool", "m5"))
        NodeRecord(node='n1', machine='m5', groups=('pool',))
        """
        # The instance type is the least specific key, so it is the last.
        return cls(node, keys[-1], tuple(keys[:-1])) if keys else cls(node)

    @property
    def price_keys(self) -> tuple[str, ...]:
        """The keys under which a price table may have it, its name first."""
        return (self.node, *self.groups, self.machine)


class DecisionRecord(msgspec.Struct, frozen=True, gc=False):
    """A decision about a VM, ``by`` its agent or the scheduler; ``said`` are ``explain``'s sentences, the summary
    first. ``size`` is what the VM had then; ``denied`` whether it got less than it asked for.
    """

    at: Millis
    vm: ObjectName
    by: str
    said: tuple[str, ...]
    size: Size | None = None
    denied: bool = False


class MoveRecord(msgspec.Struct, frozen=True, gc=False):
    """A migration: ``until`` is when it was last seen under way, or ended. ``downtime`` in milliseconds if known."""

    name: ObjectName
    vm: ObjectName
    source: str
    target: str
    phase: str
    since: Millis
    until: Millis
    reason: str = ""
    downtime: Millis | None = None
