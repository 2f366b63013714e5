"""``make bench-scarcity``: the quick start's fleet, short of CPU: how long do VMs wait beside idle neighbours?

Real agents, ledger and planner in virtual time, without a cluster: the same seed gives the same result on the busiest
machine. The rule: no VM is denied for longer than ``PATIENCE`` while the others of its node hold more than twice the
CPU that they use.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import ceil
from pathlib import Path
from typing import Annotated, Final

import numpy as np
import typer
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table

from deploy.local.cluster.guests import wave_period, waves
from protocol.messages import ObjectName
from protocol.units import Bytes, Seconds
from scripts.autoscale.drawing import dress, save
from scripts.autoscale.simulate.fleet import SimulatedFleet, SimulationSettings
from scripts.autoscale.simulate.recording_grid import RecordingGrid
from scripts.autoscale.simulate.run import Run
from scripts.autoscale.simulate.vm_table import UNIT, VmTable

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


NODES: Final = 10
VMS: Final = 60
NODE: Final = UNIT * 62
"""15.5 vCPUs may be reserved of a node of 16."""

SETTLE: Final = 300
"""Seconds that are played and not judged."""

_MEM: Final = Bytes.parse("5Gi")
"""The memory that a VM uses; none of it is short."""

INK, USED, RED, GREY = "#1d3557", "#cfe0f0", "#e63946", "#6c757d"
COLUMNS: Final = 5


def scarcity(
    minutes: Annotated[float, typer.Option(min=0.1, help="How long to look, after five minutes to settle.")] = 15.0,
    picture: Annotated[Path | None, typer.Option(help="Draw the minutes into this file.")] = None,
) -> None:
    """Judge a fleet of simulated VMs that is short of CPU. Exits 0 only if nobody waited for idle neighbours."""
    history, console = play(minutes), Console()
    table = Table("what", "value", title=f"{len(history.looks)} looks")
    table.add_row("denials", str(len(history.denials)))
    table.add_row("longest denial, seconds", f"{longest(history.denials):.0f}")
    table.add_row("denials beside idle neighbours", str(len(history.waits)))
    table.add_row("longest of them, seconds", f"{longest(history.waits):.0f}")
    table.add_row(f"of more than {PATIENCE:g} s", str(len(history.broken)))
    console.print(table)
    for wait in history.broken:
        console.print(str(wait), soft_wrap=True, markup=False)
    if picture is not None:
        draw(history, picture)
    raise typer.Exit(1 if history.broken else 0)


def play(minutes: float, seed: int = 1) -> Scarcity:
    """All looks at the fleet, one a second."""
    table = _table()
    settings = SimulationSettings(nodes=NODES, vms=VMS, hours=minutes / 60, step=Seconds(1.0), seed=seed)
    run, history = Run(SimulatedFleet(settings, table, NODE), "least-cost"), Scarcity()
    for played in run.play():
        second = played - 1 - SETTLE
        if second >= 60 * minutes:
            break
        if second >= 0:
            history.look(float(second), _nodes(run, table.at(played - 1 - run.warm_up)[0].tolist()))
    return history


def _nodes(run: Run, demand: list[float]) -> list[NodeLook]:
    """The nodes with their VMs. A VM uses what it demands, as far as it has it."""
    cluster = run.cluster
    looks = []
    for name in cluster.nodes:
        node, vms = cluster.ledger.nodes[name], []
        for claim in node.claims.values():
            if claim.pod.vm is not None and claim.pod.vm in cluster.vms:
                vm = cluster.vms[claim.pod.vm]
                uses = min(demand[vm.index], vm.use.cpu.as_cores)
                vms.append(VmLook(vm.name.name, claim.reserved.cpu.as_cores, uses, claim.unmet.cpu.as_cores))
        looks.append(NodeLook(name, node.room.watermark.cpu.as_cores, vms))
    return looks


def _table() -> VmTable:
    """The waves of the quick start, each VM shifted as there."""
    period = wave_period(VMS)
    load = waves(0, period)
    cores = np.array([load.at(Seconds(float(second))).cpu for second in range(period)])
    peak, one = float(cores.max()), np.ones(VMS, dtype=np.int64)
    names = (ObjectName("default", f"vm-{number}") for number in range(1, VMS + 1))
    return VmTable(
        grid=RecordingGrid(
            cores=cores / peak,
            mem=np.ones(period),
            is_new=np.ones(period, dtype=np.bool_),
            base=np.zeros(1, dtype=np.int64),
            length=np.full(1, period),
            weight=np.ones(1),
        ),
        base=0 * one,
        length=one * period,
        offset=np.array([zlib.crc32(str(name).encode()) % period for name in names]),
        vcpus=4 * one,
        cpu_peak=np.full(VMS, peak),
        mem_peak=np.full(VMS, float(_MEM.value)),
    )


def draw(history: Scarcity, path: Path) -> None:
    """Draws one panel for each node into ``path``: its CPU over the minutes, and what VMs were denied."""
    minutes = [at / 60 for at, _ in history.looks]
    names = sorted({node.name for _, nodes in history.looks for node in nodes}, key=lambda name: (len(name), name))
    rows = ceil(len(names) / COLUMNS)
    figure = Figure(figsize=(13, 1.2 + 2.1 * rows), layout="constrained")
    panels = figure.subplots(rows, COLUMNS, sharex=True, sharey=True, squeeze=False).flatten().tolist()
    for name, panel in zip(names, panels, strict=False):
        _panel(panel, minutes, [next(node for node in nodes if node.name == name) for _, nodes in history.looks])
        panel.set_title(name, loc="left", fontsize=9)
    for panel in panels[len(names) :]:
        panel.set_visible(False)
    figure.supylabel("vCPU", fontsize=9)
    figure.supxlabel("minutes", fontsize=9)
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper left", ncols=4, frameon=False, fontsize=9.5)
    save(figure, path)


def _panel(panel: Axes, minutes: list[float], looks: list[NodeLook]) -> None:
    holds = [look.holds for look in looks]
    wanted = [look.holds + sum(vm.lacks for vm in look.vms) for look in looks]
    panel.fill_between(minutes, [look.uses for look in looks], color=USED, linewidth=0, label="used by its VMs")
    panel.step(minutes, holds, color=INK, linewidth=1.2, where="post", label="held by them")
    panel.axhline(looks[0].watermark, color=GREY, linewidth=0.8, linestyle="--", label="watermark")
    panel.fill_between(minutes, holds, wanted, step="post", color=RED, linewidth=0, label="denied")
    dress(panel)
    panel.tick_params(labelsize=8)


if __name__ == "__main__":
    typer.run(scarcity)
