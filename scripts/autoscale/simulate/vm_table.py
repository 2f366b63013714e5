"""The VMs of a simulated fleet: the bounds of each, and the recording that it plays from a given offset."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from agent.core.policy import CpuPolicy, MemoryPolicy
from protocol.units import ComputeUnit
from protocol.virtual_machine import Bounds
from scripts.autoscale.replay.recording import Floats
from scripts.autoscale.simulate.recording_grid import Flags, Ints, RecordingGrid

UNIT: Final = ComputeUnit.parse("250m", "1Gi")
SLOT: Final = UNIT.mem
UNITS_PER_VCPU: Final = 4
"""The VMs' bounds are whole compute units, as every size is that an agent asks for."""

VCPUS: Final = {1: 0.30, 2: 0.30, 4: 0.25, 8: 0.12, 16: 0.03}
"""The share of VMs by the number of vCPUs that they may grow to."""

CPU_PEAK: Final = (0.45, 0.95)
MEM_PEAK: Final = (0.25, 0.60)
"""The range of a VM's peak, as a share of its upper bound. A guest needs more memory than it uses."""


@dataclass(frozen=True)
class VmTable:
    """All VMs; each is an index into the arrays.

    A VM's recording begins at ``base`` in the grid and has ``length`` steps; the VM starts at step ``offset``. The
    recording's peak stands for ``cpu_peak`` vCPUs and ``mem_peak`` bytes. The VM may grow to ``vcpus``.
    """

    grid: RecordingGrid
    base: Ints
    length: Ints
    offset: Ints
    vcpus: Ints
    cpu_peak: Floats
    mem_peak: Floats

    def at(self, step: int) -> tuple[Floats, Floats, Flags]:
        """Every VM's demand in vCPUs, its memory in use in bytes, and whether either has just changed."""
        # A recording repeats when it ends.
        place = self.base + (step + self.offset) % self.length
        grid = self.grid
        return grid.cores[place] * self.cpu_peak, grid.mem[place] * self.mem_peak, grid.is_new[place]

    def bounds(self, vm: int) -> Bounds:
        """Bounds of the VM."""
        return Bounds(UNIT, UNIT * (int(self.vcpus[vm]) * UNITS_PER_VCPU))

    def units_at(self, step: int) -> Ints:
        """Compute units that each VM needs at ``step``."""
        cores, used, _ = self.at(step)
        # The default policies of agents: a fleet's nodes are sized for what its agents will ask for.
        cpu, memory = CpuPolicy(), MemoryPolicy()
        by_cpu = cores / cpu.target / UNIT.cpu.as_cores
        by_mem = (used + memory.kernel_allowance.value) / memory.target / UNIT.mem.value
        return np.clip(np.ceil(np.maximum(by_cpu, by_mem)), 1, self.most_units).astype(np.int64)

    @property
    def most_units(self) -> Ints:
        """The upper bound of each VM in compute units."""
        return self.vcpus * UNITS_PER_VCPU


def draw_vm_table(grid: RecordingGrid, count: int, day: int, spread: float, random: np.random.Generator) -> VmTable:
    """``count`` VMs that play ``grid``, where ``day`` steps are a day, shifted by up to ``spread`` of a day."""
    plays = random.choice(len(grid.base), count, p=grid.weight)
    length = grid.length[plays]
    vcpus = random.choice(list(VCPUS), count, p=list(VCPUS.values())).astype(np.int64)
    return VmTable(
        grid,
        grid.base[plays],
        length,
        _offsets(length, day, spread, random),
        vcpus,
        cpu_peak=vcpus * random.uniform(*CPU_PEAK, count),
        mem_peak=vcpus * UNITS_PER_VCPU * UNIT.mem.value * random.uniform(*MEM_PEAK, count),
    )


def _offsets(length: Ints, day: int, spread: float, random: np.random.Generator) -> Ints:
    """The first step of each: on a random day at about the same time, or anywhere in a recording shorter than a day."""
    # VMs are shifted by whole days and a few hours, so that they keep the daily rhythm of their recording.
    days = random.integers(0, np.maximum(1, length // day))
    shift = np.round(random.uniform(-spread, spread, len(length)) * day).astype(np.int64)
    return np.where(length < day, random.integers(0, length), (days * day + shift) % length)
