"""The VMs of a simulated fleet: how large each may become, and which recording it plays from where.

Rules that hold here:

- Everything follows from the tracks and the dice.
- VMs keep the rhythm of their recording's day: they are shifted by whole days, and by a few hours beside that.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from agent.core.policy import CpuPolicy, MemoryPolicy
from protocol.units import ComputeUnit
from protocol.virtual_machine import Bounds
from scripts.autoscale.replay.recording import Floats
from scripts.autoscale.simulate.tracks import Flags, Ints, Tracks

UNIT: Final = ComputeUnit.parse("250m", "1Gi")
SLOT: Final = UNIT.mem
UNITS_PER_VCPU: Final = 4
"""The VMs' bounds are whole compute units, as every size is that an agent asks for."""

VCPUS: Final = {1: 0.30, 2: 0.30, 4: 0.25, 8: 0.12, 16: 0.03}
"""Which part of the VMs may grow to how many vCPUs."""

CPU_PEAK: Final = (0.45, 0.95)
MEM_PEAK: Final = (0.25, 0.60)
"""Between which shares of its upper bound a VM's peak lies. Memory in use is not all that must be there."""


@dataclass(frozen=True)
class Cast:
    """The VMs, each a place in the arrays.

    The VM's recording begins at ``base`` and has ``length`` steps, of which it plays ``offset`` first; the recording's
    peak means ``cpu_peak`` vCPUs and ``mem_peak`` bytes to it. It may grow to ``vcpus``.
    """

    tracks: Tracks
    base: Ints
    length: Ints
    offset: Ints
    vcpus: Ints
    cpu_peak: Floats
    mem_peak: Floats

    def at(self, step: int) -> tuple[Floats, Floats, Flags]:
        """Every VM's demand in vCPUs, its memory in use in bytes, and whether either has just changed."""
        place = self.base + (step + self.offset) % self.length
        tracks = self.tracks
        return tracks.cores[place] * self.cpu_peak, tracks.mem[place] * self.mem_peak, tracks.is_new[place]

    def bounds(self, vm: int) -> Bounds:
        """How small and how large the VM may become."""
        return Bounds(UNIT, UNIT * int(self.most_units[vm]))

    def units_at(self, step: int) -> Ints:
        """How many compute units each VM needs for what it does at ``step``."""
        cores, used, _ = self.at(step)
        cpu, memory = CpuPolicy(), MemoryPolicy()
        by_cpu = cores / cpu.target / UNIT.cpu.as_cores
        by_mem = (used + memory.kernel_allowance.value) / memory.target / UNIT.mem.value
        return np.clip(np.ceil(np.maximum(by_cpu, by_mem)), 1, self.most_units).astype(np.int64)

    @property
    def most_units(self) -> Ints:
        """To how many compute units each VM may grow."""
        return self.vcpus * UNITS_PER_VCPU


def cast_vms(tracks: Tracks, count: int, day: int, spread: float, random: np.random.Generator) -> Cast:
    """``count`` VMs that play ``tracks``, where ``day`` steps are a day, shifted by up to ``spread`` of a day."""
    plays = random.choice(len(tracks.base), count, p=tracks.weight)
    length = tracks.length[plays]
    vcpus = random.choice(list(VCPUS), count, p=list(VCPUS.values())).astype(np.int64)
    return Cast(
        tracks,
        tracks.base[plays],
        length,
        _offsets(length, day, spread, random),
        vcpus,
        cpu_peak=vcpus * random.uniform(*CPU_PEAK, count),
        mem_peak=vcpus * UNITS_PER_VCPU * UNIT.mem.value * random.uniform(*MEM_PEAK, count),
    )


def _offsets(length: Ints, day: int, spread: float, random: np.random.Generator) -> Ints:
    """Where each begins: some day at about the same time, or anywhere in recordings of less than a day."""
    days = random.integers(0, np.maximum(1, length // day))
    beside = np.round(random.uniform(-spread, spread, len(length)) * day).astype(np.int64)
    return np.where(length < day, random.integers(0, length), (days * day + beside) % length)
