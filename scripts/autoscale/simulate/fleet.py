"""What one asks to have simulated, and the cluster that follows from it.

Rules that hold here:

- Everything follows from the settings; the same settings give the same fleet.
- Nodes are alike, and so large that the fleet's need takes the share ``fill`` of them at its busiest moment. What VMs
  reserve is more: agents hold what was just needed, and round up. All together VMs may ask for more than there is.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from math import ceil
from pathlib import Path
from typing import Final

import numpy as np

from protocol.units import Bytes, Resources, Seconds
from scheduler_plugin.ledger.facts import Level, NodePolicy
from scripts.autoscale.simulate.cast import UNIT, Cast, cast_vms
from scripts.autoscale.simulate.tracks import read_tracks, steps_of_a_day

SYSTEM: Final = Resources.parse("500m", "1Gi")
LOOKS: Final = 300
"""At how many instants the fleet's need is looked at to find its peak."""


class SettingsError(ValueError):
    """Settings that cannot be simulated; the message names the option."""


@dataclass(frozen=True)
class Settings:
    """What one asks to have simulated.

    ``spread`` (hours) is how far VMs of one rhythm are apart, ``fill`` the share of the nodes that the fleet's need
    takes at its peak. A migration takes ``setup``, and the VM's memory in use at ``bandwidth`` a second.
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

    @property
    def steps(self) -> int:
        """How many steps are counted."""
        return round(self.hours * 3600 / self.step)


@dataclass(frozen=True)
class Fleet:
    """The VMs, and nodes on each of which ``total`` may be reserved."""

    settings: Settings
    cast: Cast
    total: Resources

    @property
    def policy(self) -> NodePolicy:
        """The settings of every node."""
        mark = self.settings.watermark
        return NodePolicy(UNIT, Level(mark, SYSTEM.cpu), Level(mark, SYSTEM.mem))

    @property
    def allocatable(self) -> Resources:
        """What each node has for pods and the system."""
        return self.total + SYSTEM

    @property
    def overbooking(self) -> float:
        """The upper bounds of all VMs over the CPU that all nodes have."""
        return float(self.cast.vcpus.sum()) / (self.total.cpu.as_cores * self.settings.nodes)


def make_fleet(settings: Settings) -> Fleet:
    """The fleet of these settings. Raises ``RecordingError``, ``OSError`` and ``SettingsError``."""
    tracks = read_tracks(settings.traces, settings.step, settings.speed, settings.seed)
    random = np.random.Generator(np.random.PCG64([settings.seed, 0xF1EE7]))
    day = steps_of_a_day(settings.step, settings.speed)
    cast = cast_vms(tracks, settings.vms, day, settings.spread / 24, random)
    return Fleet(settings, cast, _node_size(cast, settings))


def _node_size(cast: Cast, settings: Settings) -> Resources:
    """Whole compute units, at least what the largest VM may ask for below the watermark."""
    share = _peak_units(cast, settings.steps) / (settings.nodes * settings.fill)
    largest = int(cast.most_units.max()) / float(settings.watermark)
    return UNIT * ceil(max(share, largest))


def _peak_units(cast: Cast, steps: int) -> int:
    """The most compute units that all VMs together need at one moment."""
    return max(int(cast.units_at(step).sum()) for step in range(0, max(1, steps), max(1, steps // LOOKS)))
