"""The settings of a simulation, and the fleet that they describe: the same settings give the same fleet.

All nodes have one size, of which the fleet needs the share ``fill`` at its peak; the sum of all bounds may be more.
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
"""The number of instants at which the fleet's need is computed to find its peak."""


class SimulationSettingsError(ValueError):
    """Settings that cannot be simulated; the message names the option."""


@dataclass(frozen=True)
class SimulationSettings:
    """The options of a simulation.

    ``spread`` (hours) is how far apart VMs with the same daily rhythm are, ``fill`` the share of the nodes that the
    fleet needs at its peak. A migration takes ``setup`` plus the VM's memory in use divided by ``bandwidth`` (bytes/s).
    ``groups`` are those that the first VMs form. A VM would sleep after ``sleep`` of idleness; 0: never.
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
        """The number of steps that count."""
        return round(self.hours * 3600 / self.step)


@dataclass(frozen=True)
class SimulatedFleet:
    """The VMs, and nodes that may each reserve ``total``."""

    settings: SimulationSettings
    table: VmTable
    total: Resources

    @property
    def policy(self) -> NodePolicy:
        """The settings of every node."""
        mark = self.settings.watermark
        return NodePolicy(UNIT, ResourcePolicy(mark, SYSTEM.cpu), ResourcePolicy(mark, SYSTEM.mem))

    @property
    def allocatable(self) -> Resources:
        """The allocatable resources of each node, system reserve included."""
        return self.total + SYSTEM

    @property
    def overbooking(self) -> float:
        """The sum of the VMs' upper bounds divided by the CPU of all nodes."""
        return float(self.table.vcpus.sum()) / (self.total.cpu.as_cores * self.settings.nodes)


def make_fleet(settings: SimulationSettings) -> SimulatedFleet:
    """The fleet of these settings. Raises ``RecordingError``, ``OSError`` and ``SimulationSettingsError``."""
    grid = read_grid(settings.traces, settings.step, settings.speed, settings.seed)
    # A stream of its own, so that the fleet does not depend on how recordings are generated.
    random = np.random.Generator(np.random.PCG64([settings.seed, 0xF1EE7]))
    day = steps_of_a_day(settings.step, settings.speed)
    if settings.groups.members > settings.vms:
        raise SimulationSettingsError(
            f"--groups: {settings.groups.members:,} members are more than --vms {settings.vms:,}"
        )
    table = settings.groups.shared(draw_vm_table(grid, settings.vms, day, settings.spread / 24, random))
    return SimulatedFleet(settings, table, _node_size(table, settings))


def _node_size(table: VmTable, settings: SimulationSettings) -> Resources:
    """A node's size in whole compute units; the largest VM fits below the watermark."""
    # `fill` should be below the watermark: agents hold what was needed lately and round up, so VMs reserve more than
    # they need.
    share = _peak_units(table, settings.steps) / (settings.nodes * settings.fill)
    largest = int(table.most_units.max()) / float(settings.watermark)
    return UNIT * ceil(max(share, largest))


def _peak_units(table: VmTable, steps: int) -> int:
    """The largest number of compute units that all VMs together need at one instant."""
    # A few hundred instants are enough to find the peak of a day.
    return max(int(table.units_at(step).sum()) for step in range(0, max(1, steps), max(1, steps // PEAK_SAMPLES)))
