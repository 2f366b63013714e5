"""The VMs of a simulated fleet: their bounds, and the recordings that they replay."""

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
"""Bounds are whole compute units, as are all sizes that agents request."""

VCPUS: Final = {1: 0.30, 2: 0.30, 4: 0.25, 8: 0.12, 16: 0.03}
"""Share of VMs by their maximum vCPUs."""

CPU_PEAK: Final = (0.45, 0.95)
MEM_PEAK: Final = (0.25, 0.60)
"""Ranges of a VM's peak demand, as a share of its maximum."""


@dataclass(frozen=True)
class VmTable:
    """All VMs; every array has one value per VM.

    A VM replays ``length`` steps of the grid from step ``base`` on, and starts at ``offset`` in them. At the
    recording's peak it needs ``cpu_peak`` vCPUs and ``mem_peak`` bytes. Its maximum is ``vcpus``.
    """

    grid: RecordingGrid
    base: Ints
    length: Ints
    offset: Ints
    vcpus: Ints
    cpu_peak: Floats
    mem_peak: Floats

    def at(self, step: int) -> tuple[Floats, Floats, Flags]:
        """Demand in vCPUs and used memory in bytes per VM, and True if either has changed in ``step``."""
        # Recordings repeat.
        positions = self.base + (step + self.offset) % self.length
        grid = self.grid
        return grid.cores[positions] * self.cpu_peak, grid.mem[positions] * self.mem_peak, grid.is_new[positions]

    def bounds(self, vm: int) -> Bounds:
        """Bounds of VM ``vm``."""
        return Bounds(UNIT, UNIT * (int(self.vcpus[vm]) * UNITS_PER_VCPU))

    def units_at(self, step: int) -> Ints:
        """Compute units that each VM needs at ``step``."""
        cores, used, _ = self.at(step)
        # With the agents' default policies, so that nodes are sized for what agents will request.
        cpu, memory = CpuPolicy(), MemoryPolicy()
        by_cpu = cores / cpu.target / UNIT.cpu.as_cores
        by_mem = (used + memory.kernel_allowance.value) / memory.target / UNIT.mem.value
        return np.clip(np.ceil(np.maximum(by_cpu, by_mem)), 1, self.max_units).astype(np.int64)

    @property
    def max_units(self) -> Ints:
        """Maximum of each VM in compute units."""
        return self.vcpus * UNITS_PER_VCPU


def draw_vm_table(grid: RecordingGrid, count: int, day: int, spread: float, random: np.random.Generator) -> VmTable:
    """Draw ``count`` random VMs; a day has ``day`` steps, and ``spread`` (days) is the maximum shift."""
    recordings = random.choice(len(grid.base), count, p=grid.weight)
    length = grid.length[recordings]
    vcpus = random.choice(list(VCPUS), count, p=list(VCPUS.values())).astype(np.int64)
    return VmTable(
        grid,
        grid.base[recordings],
        length,
        _offsets(length, day, spread, random),
        vcpus,
        cpu_peak=vcpus * random.uniform(*CPU_PEAK, count),
        mem_peak=vcpus * UNITS_PER_VCPU * UNIT.mem.value * random.uniform(*MEM_PEAK, count),
    )


def _offsets(length: Ints, day: int, spread: float, random: np.random.Generator) -> Ints:
    """First step of each VM: about the same time of a random day, or any step of recordings shorter than a day."""
    # Shifts of whole days and a few hours keep the daily rhythm of a recording.
    days = random.integers(0, np.maximum(1, length // day))
    shift = np.round(random.uniform(-spread, spread, len(length)) * day).astype(np.int64)
    return np.where(length < day, random.integers(0, length), (days * day + shift) % length)
