"""Settings of a simulation, and the fleet built from them. The same settings give the same fleet.

All nodes have one size. The fleet needs the share ``fill`` of them at its peak; the VMs' maximums may exceed them.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from math import ceil
from pathlib import Path
from typing import Final

import numpy as np

from protocol.units import Bytes, Resources, Seconds
from scheduler_plugin.ledger.facts import NodePolicy, ResourcePolicy
from scripts.autoscale.simulate.recording_grid import read_grid, steps_of_a_day
from scripts.autoscale.simulate.simulated_groups import NO_GROUPS, SimulatedGroups
from scripts.autoscale.simulate.vm_table import UNIT, VmTable, draw_vm_table

SYSTEM: Final = Resources.parse("500m", "1Gi")
PEAK_SAMPLES: Final = 300
"""Number of steps to sample for the fleet's peak: a few hundred find the peak of a day."""


class SimulationSettingsError(ValueError):
    """Invalid settings; the message names the option."""


@dataclass(frozen=True)
class SimulationSettings:
    """Options of a simulation.

    ``traces``: recordings; empty for generated ones. ``speed``: replay speed (> 0). ``fill``: share of the nodes that
    the fleet needs at its peak. ``spread``: maximum shift of a VM's daily peak in hours. A migration takes ``setup``
    plus used memory / ``bandwidth`` (bytes/s). ``sleep``: seconds of idleness before a VM sleeps; 0 for never.
    """

    nodes: int = 500
    vms: int = 10_000
    hours: float = 24.0
    step: Seconds = Seconds(15.0)
    seed: int = 1
    traces: tuple[Path, ...] = ()
    speed: float = 1.0
    watermark: Fraction = Fraction(9, 10)
    fill: float = 0.7
    spread: float = 4.0
    bandwidth: Bytes = Bytes.parse("256Mi")
    setup: Seconds = Seconds(5.0)
    groups: SimulatedGroups = NO_GROUPS
    sleep: Seconds = Seconds(0.0)

    @property
    def steps(self) -> int:
        """Number of steps after the warm-up."""
        return round(self.hours * 3600 / self.step)


@dataclass(frozen=True)
class SimulatedFleet:
    """VMs, and nodes on each of which ``total`` can be reserved."""

    settings: SimulationSettings
    table: VmTable
    total: Resources

    @property
    def policy(self) -> NodePolicy:
        """The scheduler's settings for every node."""
        watermark = self.settings.watermark
        return NodePolicy(UNIT, ResourcePolicy(watermark, SYSTEM.cpu), ResourcePolicy(watermark, SYSTEM.mem))

    @property
    def allocatable(self) -> Resources:
        """Allocatable resources of each node, including those for the system."""
        return self.total + SYSTEM

    @property
    def overbooking(self) -> float:
        """The VMs' maximum vCPUs divided by the vCPUs of all nodes."""
        return float(self.table.vcpus.sum()) / (self.total.cpu.as_cores * self.settings.nodes)


def make_fleet(settings: SimulationSettings) -> SimulatedFleet:
    """Build the fleet. Raises ``RecordingError``, ``OSError`` and ``SimulationSettingsError``."""
    grid = read_grid(settings.traces, settings.step, settings.speed, settings.seed)
    # A separate random stream: the fleet must not depend on the generated recordings.
    random = np.random.Generator(np.random.PCG64([settings.seed, 0xF1EE7]))
    day = steps_of_a_day(settings.step, settings.speed)
    if settings.groups.members > settings.vms:
        raise SimulationSettingsError(
            f"--groups: {settings.groups.members:,} members are more than --vms {settings.vms:,}"
        )
    table = settings.groups.align_replicas(draw_vm_table(grid, settings.vms, day, settings.spread / 24, random))
    return SimulatedFleet(settings, table, _node_size(table, settings))


def _node_size(table: VmTable, settings: SimulationSettings) -> Resources:
    """Reservable size of a node, in whole compute units. The largest VM fits below the watermark."""
    # VMs reserve more than they need, as agents hold recent needs and round up: `fill` should be below the watermark.
    steps = range(0, max(1, settings.steps), max(1, settings.steps // PEAK_SAMPLES))
    share = max(int(table.units_at(step).sum()) for step in steps) / (settings.nodes * settings.fill)
    largest = int(table.max_units.max()) / float(settings.watermark)
    return UNIT * ceil(max(share, largest))
