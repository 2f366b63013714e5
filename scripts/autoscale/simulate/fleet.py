"""Who is in the simulated cluster: VMs of several sizes with their recordings, and nodes that just hold them.

Rules that hold here:

- Everything follows from the settings and the seed.
- VMs keep the rhythm of their recording's day: they are shifted by whole days, and by up to ``spread`` beside that.
- Nodes are alike, and so large that the fleet's need takes the share ``fill`` of them at its busiest moment. What VMs
  reserve is somewhat more: agents hold what was just needed, and round up.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Final

import numpy as np

from protocol.units import Bytes, ComputeUnit, MilliCpu, Resources, Seconds
from protocol.virtual_machine import Bounds
from scheduler_plugin.ledger.facts import Level, NodePolicy
from scripts.autoscale.replay.recording import Floats
from scripts.autoscale.simulate.tracks import Flags, Ints, Tracks, read_tracks, steps_of_a_day

GIB: Final = 1024**3
UNIT: Final = ComputeUnit.parse("250m", "1Gi")
SLOT: Final = UNIT.mem
GIB_PER_VCPU: Final = 4
VCPUS: Final = {1: 0.3, 2: 0.3, 4: 0.25, 8: 0.12, 16: 0.03}
"""How many of the VMs may grow to so many vCPUs, with 4 GiB for each."""

CPU_PEAK: Final = (0.45, 0.95)
MEM_PEAK: Final = (0.35, 0.65)
"""Between which shares of its upper bound a VM's peak lies; memory in use is not all that must be there."""

SYSTEM: Final = Resources.parse("500m", "1Gi")
LOOKS: Final = 300
"""At how many instants the fleet's need is looked at to find its peak."""


@dataclass(frozen=True)
class Settings:
    """What one asks to have simulated. ``bandwidth`` is bytes a second for each migration, ``setup`` its fixed part."""

    nodes: int = 500
    vms: int = 10_000
    hours: float = 24.0
    step: Seconds = Seconds(15.0)
    seed: int = 1
    traces: tuple[Path, ...] = ()
    speed: float = 1.0
    watermark: Fraction = Fraction(9, 10)
    fill: float = 0.75
    spread: float = 4.0
    bandwidth: Bytes = Bytes(256 * 1024**2)
    setup: Seconds = Seconds(5.0)

    @property
    def steps(self) -> int:
        """How many steps are counted."""
        return round(self.hours * 3600 / self.step)


@dataclass(frozen=True)
class Fleet:
    """The VMs, one in each place of the arrays, and the nodes.

    ``cpu_peak`` (vCPUs) and ``mem_peak`` (bytes) are what the recording's peak means for the VM; ``offset`` is where
    it begins in its recording. ``total`` is what may be reserved on each node.
    """

    settings: Settings
    tracks: Tracks
    base: Ints
    length: Ints
    offset: Ints
    vcpus: Ints
    cpu_peak: Floats
    mem_peak: Floats
    total: Resources

    def at(self, step: int) -> tuple[Floats, Floats, Flags]:
        """Every VM's demand in vCPUs, its memory in use in bytes, and whether either has just changed."""
        place = self.base + (step + self.offset) % self.length
        tracks = self.tracks
        return tracks.cores[place] * self.cpu_peak, tracks.mem[place] * self.mem_peak, tracks.is_new[place]

    def bounds(self, vm: int) -> Bounds:
        """How small and how large the VM may become."""
        vcpus = int(self.vcpus[vm])
        return Bounds(UNIT, Resources(MilliCpu(1000 * vcpus), Bytes(GIB_PER_VCPU * GIB * vcpus)))

    @property
    def policy(self) -> NodePolicy:
        """The settings of every node."""
        mark = self.settings.watermark
        return NodePolicy(UNIT, Level(mark, SYSTEM.cpu), Level(mark, SYSTEM.mem))

    @property
    def allocatable(self) -> Resources:
        """What each node has for pods."""
        return self.total + SYSTEM

    @property
    def overbooking(self) -> float:
        """By how much the upper bounds of all VMs exceed the CPU that there is."""
        return float(self.vcpus.sum()) / (self.total.cpu.as_cores * self.settings.nodes)


def make_fleet(settings: Settings) -> Fleet:
    """The fleet of these settings. Raises ``RecordingError`` and ``OSError``."""
    tracks = read_tracks(settings.traces, settings.step, settings.speed, settings.seed)
    random = np.random.Generator(np.random.PCG64([settings.seed, 0x0F1EE7]))
    plays = random.choice(len(tracks.base), settings.vms, p=tracks.weight)
    length = tracks.length[plays]
    vcpus = random.choice(list(VCPUS), settings.vms, p=list(VCPUS.values())).astype(np.int64)
    cpu_peak = vcpus * random.uniform(*CPU_PEAK, settings.vms)
    mem_peak = vcpus * GIB_PER_VCPU * GIB * random.uniform(*MEM_PEAK, settings.vms)
    offset = _offsets(settings, length, random)
    need = _peak_need(_Playing(tracks, tracks.base[plays], length, offset, vcpus, cpu_peak, mem_peak), settings.steps)
    total = _node_size(need, settings, int(vcpus.max()))
    return Fleet(settings, tracks, tracks.base[plays], length, offset, vcpus, cpu_peak, mem_peak, total)


def _offsets(settings: Settings, length: Ints, random: np.random.Generator) -> Ints:
    day = steps_of_a_day(settings.step, settings.speed)
    days = random.integers(0, np.maximum(1, length // day))
    spread = random.uniform(-settings.spread, settings.spread, len(length)) * day / 24
    anywhere = random.integers(0, length)
    return np.where(length < day, anywhere, (days * day + np.round(spread)).astype(np.int64) % length)


@dataclass(frozen=True)
class _Playing:
    tracks: Tracks
    base: Ints
    length: Ints
    offset: Ints
    vcpus: Ints
    cpu_peak: Floats
    mem_peak: Floats
