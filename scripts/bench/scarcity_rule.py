"""The rule that ``scripts.bench.scarcity`` judges, over looks at a fleet (pure). CPU is in vCPUs, times in seconds.

A wait lasts as long as consecutive looks show a VM denied on one node whose other VMs together hold more than twice the
CPU that they use.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

PATIENCE: Final = 30.0
"""How long a VM may be denied beside idle neighbours."""

IDLE: Final = 2.0
"""Neighbours that hold more than this many times what they use are idle."""


@dataclass(frozen=True, slots=True)
class VmLook:
    """One VM: the CPU that it holds, that it uses, and that it was denied."""

    name: str
    holds: float
    uses: float
    lacks: float


@dataclass(frozen=True, slots=True)
class NodeLook:
    """One node with its VMs."""

    name: str
    watermark: float
    vms: Sequence[VmLook]

    @property
    def holds(self) -> float:
        """The CPU that its VMs hold."""
        return sum(vm.holds for vm in self.vms)

    @property
    def uses(self) -> float:
        """The CPU that its VMs use."""
        return sum(vm.uses for vm in self.vms)

    def has_idle_beside(self, vm: VmLook) -> bool:
        """Return True if the other VMs hold more than ``IDLE`` times the CPU that they use."""
        return self.holds - vm.holds > IDLE * (self.uses - vm.uses)


@dataclass(slots=True)
class Wait:
    """A denial from ``since`` to ``until``; ``holds`` and ``uses`` are those of the VM's neighbours at its end."""

    vm: str
    node: str
    since: float
    until: float
    holds: float
    uses: float

    @property
    def seconds(self) -> float:
        """Its length."""
        return self.until - self.since

    def __str__(self) -> str:
        return (
            f"{self.since:.0f} s: {self.vm} on {self.node} was denied for {self.seconds:.0f} s;"
            f" its neighbours hold {self.holds:.2f} vCPU and use {self.uses:.2f}"
        )


@dataclass(slots=True)
class Scarcity:
    """All looks at a fleet, and the waits of its VMs: all denials, and those beside idle neighbours alone."""

    looks: list[tuple[float, Sequence[NodeLook]]] = field(default_factory=list)
    denials: list[Wait] = field(default_factory=list)
    waits: list[Wait] = field(default_factory=list)

    def look(self, at: float, nodes: Sequence[NodeLook]) -> None:
        """Takes the next look."""
        before = self.looks[-1][0] if self.looks else at
        denied = [(node, vm) for node in nodes for vm in node.vms if vm.lacks > 0]
        _extend(self.denials, denied, before, at)
        _extend(self.waits, [(node, vm) for node, vm in denied if node.has_idle_beside(vm)], before, at)
        self.looks.append((at, nodes))

    @property
    def broken(self) -> list[Wait]:
        """The waits that were too long."""
        return [wait for wait in self.waits if wait.seconds > PATIENCE]


def longest(waits: Sequence[Wait]) -> float:
    """The length of the longest; 0 if there are none."""
    return max((wait.seconds for wait in waits), default=0.0)


def _extend(waits: list[Wait], denied: Sequence[tuple[NodeLook, VmLook]], before: float, at: float) -> None:
    """Goes on with the waits that were seen ``before``, and begins new ones."""
    open_waits = {(wait.vm, wait.node): wait for wait in waits if wait.until == before}
    for node, vm in denied:
        wait = open_waits.get((vm.name, node.name))
        if wait is None:
            wait = Wait(vm.name, node.name, at, at, 0.0, 0.0)
            waits.append(wait)
        wait.until, wait.holds, wait.uses = at, node.holds - vm.holds, node.uses - vm.uses
