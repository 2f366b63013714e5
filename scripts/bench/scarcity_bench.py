"""``make bench-scarcity``: CPU denials with idle neighbours, in the quick start's fleet on nodes with too little CPU.

Runs the real agents, ledger and planner in virtual time, so the result depends on the seed only. Rule: no VM is denied
for longer than ``MAX_DENIAL`` while the other VMs on its node hold more than ``IDLE_RATIO`` times the CPU they use.
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
from scripts.autoscale.drawing import save, style_panel
from scripts.autoscale.simulate.fleet import SimulatedFleet, SimulationSettings
from scripts.autoscale.simulate.recording_grid import RecordingGrid
from scripts.autoscale.simulate.run import Run
from scripts.autoscale.simulate.vm_table import UNIT, VmTable

MAX_DENIAL: Final = 30.0
"""Maximum seconds of a denial with idle neighbours."""

IDLE_RATIO: Final = 2.0
"""Neighbours are idle if they hold more than this times the CPU they use."""


@dataclass(frozen=True, slots=True)
class VmSample:
    """One VM: the vCPUs reserved for it, used by it, and denied to it."""

    name: str
    reserved: float
    used: float
    denied: float


@dataclass(frozen=True, slots=True)
class NodeSample:
    """One node with its VMs."""

    name: str
    watermark: float
    vms: Sequence[VmSample]

    @property
    def reserved(self) -> float:
        """vCPUs reserved for its VMs."""
        return sum(vm.reserved for vm in self.vms)

    @property
    def used(self) -> float:
        """vCPUs used by its VMs."""
        return sum(vm.used for vm in self.vms)

    def has_idle_neighbours(self, vm: VmSample) -> bool:
        """Return True if the other VMs hold more than ``IDLE_RATIO`` times the CPU they use."""
        return self.reserved - vm.reserved > IDLE_RATIO * (self.used - vm.used)


@dataclass(slots=True)
class DenialSpan:
    """A denial from ``since`` to ``until`` (seconds), with the vCPUs of the VM's neighbours at its end."""

    vm: str
    node: str
    since: float
    until: float
    reserved: float
    used: float

    @property
    def seconds(self) -> float:
        """Duration in seconds."""
        return self.until - self.since

    def __str__(self) -> str:
        return (
            f"{self.since:.0f} s: {self.vm} on {self.node} was denied for {self.seconds:.0f} s;"
            f" its neighbours hold {self.reserved:.2f} vCPU and use {self.used:.2f}"
        )


@dataclass(slots=True)
class DenialLog:
    """All samples of a fleet, all denials, and the denials with idle neighbours."""

    samples: list[tuple[float, Sequence[NodeSample]]] = field(default_factory=list)
    denials: list[DenialSpan] = field(default_factory=list)
    with_idle_neighbours: list[DenialSpan] = field(default_factory=list)

    def add(self, at: float, nodes: Sequence[NodeSample]) -> None:
        """Add the next sample."""
        before = self.samples[-1][0] if self.samples else at
        denied = [(node, vm) for node in nodes for vm in node.vms if vm.denied > 0]
        _extend(self.denials, denied, before, at)
        _extend(
            self.with_idle_neighbours, [(node, vm) for node, vm in denied if node.has_idle_neighbours(vm)], before, at
        )
        self.samples.append((at, nodes))

    @property
    def violations(self) -> list[DenialSpan]:
        """Denials with idle neighbours that exceed ``MAX_DENIAL``."""
        return [denial for denial in self.with_idle_neighbours if denial.seconds > MAX_DENIAL]


def longest(denials: Sequence[DenialSpan]) -> float:
    """Seconds of the longest denial; 0 if there are none."""
    return max((denial.seconds for denial in denials), default=0.0)


def _extend(denials: list[DenialSpan], denied: Sequence[tuple[NodeSample, VmSample]], before: float, at: float) -> None:
    """Extend the denials that were open at the last sample, ``before``, and add new ones."""
    open_denials = {(denial.vm, denial.node): denial for denial in denials if denial.until == before}
    for node, vm in denied:
        denial = open_denials.get((vm.name, node.name))
        if denial is None:
            denial = DenialSpan(vm.name, node.name, at, at, 0.0, 0.0)
            denials.append(denial)
        denial.until, denial.reserved, denial.used = at, node.reserved - vm.reserved, node.used - vm.used


NODES: Final = 10
VMS: Final = 60
NODE: Final = UNIT * 62
"""Reservable resources of a node with 16 vCPUs: the system reserves 0.5."""

SETTLE: Final = 300
"""Warm-up in seconds."""

_MEM: Final = Bytes.parse("5Gi")
"""Memory that a VM uses; nodes have enough."""

INK, USED, RED, GREY = "#1d3557", "#cfe0f0", "#e63946", "#6c757d"
COLUMNS: Final = 5


def scarcity(
    minutes: Annotated[float, typer.Option(min=0.1, help="Minutes to measure, after five minutes of warm-up.")] = 15.0,
    picture: Annotated[Path | None, typer.Option(help="Write a plot to this file.")] = None,
) -> None:
    """Simulate a fleet with too little CPU. Exits with 1 if a VM was denied too long with idle neighbours."""
    history, console = simulate(minutes), Console()
    table = Table("", "value", title=f"{len(history.samples)} samples")
    table.add_row("denials", str(len(history.denials)))
    table.add_row("longest denial, seconds", f"{longest(history.denials):.0f}")
    table.add_row("denials with idle neighbours", str(len(history.with_idle_neighbours)))
    table.add_row("longest with idle neighbours, seconds", f"{longest(history.with_idle_neighbours):.0f}")
    table.add_row(f"longer than {MAX_DENIAL:g} s with idle neighbours", str(len(history.violations)))
    console.print(table)
    for denial in history.violations:
        console.print(str(denial), soft_wrap=True, markup=False)
    if picture is not None:
        draw(history, picture)
    raise typer.Exit(1 if history.violations else 0)


def simulate(minutes: float, seed: int = 1) -> DenialLog:
    """Simulate the fleet and sample it every second."""
    table = _table()
    settings = SimulationSettings(nodes=NODES, vms=VMS, hours=minutes / 60, step=Seconds(1.0), seed=seed)
    run, history = Run(SimulatedFleet(settings, table, NODE)), DenialLog()
    for steps_done in run.execute():
        second = steps_done - 1 - SETTLE
        if second >= 60 * minutes:
            break
        if second >= 0:
            history.add(float(second), _nodes(run, table.at(steps_done - 1 - run.warm_up)[0].tolist()))
    return history


def _nodes(run: Run, demand: list[float]) -> list[NodeSample]:
    """Sample each node. A VM uses its demand, capped at its size."""
    cluster = run.cluster
    samples = []
    for name in cluster.nodes:
        node, vms = cluster.ledger.nodes[name], []
        for claim in node.claims.values():
            if claim.pod.vm is not None and claim.pod.vm in cluster.vms:
                vm = cluster.vms[claim.pod.vm]
                used = min(demand[vm.index], vm.use.cpu.as_cores)
                vms.append(VmSample(vm.name.name, claim.reserved.cpu.as_cores, used, claim.unmet.cpu.as_cores))
        samples.append(NodeSample(name, node.room.watermark.cpu.as_cores, vms))
    return samples


def _table() -> VmTable:
    """The quick start's loads: a wave, with a different phase for each VM."""
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


def draw(history: DenialLog, path: Path) -> None:
    """Plot each node's reserved, used and denied CPU over time to ``path``."""
    minutes = [at / 60 for at, _ in history.samples]
    names = sorted({node.name for _, nodes in history.samples for node in nodes}, key=lambda name: (len(name), name))
    rows = ceil(len(names) / COLUMNS)
    figure = Figure(figsize=(13, 1.2 + 2.1 * rows), layout="constrained")
    panels = figure.subplots(rows, COLUMNS, sharex=True, sharey=True, squeeze=False).flatten().tolist()
    for name, panel in zip(names, panels, strict=False):
        _panel(panel, minutes, [next(node for node in nodes if node.name == name) for _, nodes in history.samples])
        panel.set_title(name, loc="left", fontsize=9)
    for panel in panels[len(names) :]:
        panel.set_visible(False)
    figure.supylabel("vCPU", fontsize=9)
    figure.supxlabel("minutes", fontsize=9)
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper left", ncols=4, frameon=False, fontsize=9.5)
    save(figure, path)


def _panel(panel: Axes, minutes: list[float], samples: list[NodeSample]) -> None:
    reserved = [sample.reserved for sample in samples]
    wanted = [sample.reserved + sum(vm.denied for vm in sample.vms) for sample in samples]
    panel.fill_between(minutes, [sample.used for sample in samples], color=USED, linewidth=0, label="used by its VMs")
    panel.step(minutes, reserved, color=INK, linewidth=1.2, where="post", label="reserved for them")
    panel.axhline(samples[0].watermark, color=GREY, linewidth=0.8, linestyle="--", label="watermark")
    panel.fill_between(minutes, reserved, wanted, step="post", color=RED, linewidth=0, label="denied")
    style_panel(panel)
    panel.tick_params(labelsize=8)


if __name__ == "__main__":
    typer.run(scarcity)
