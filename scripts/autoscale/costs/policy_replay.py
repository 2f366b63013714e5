"""Replays each VM's recorded need through a policy for ``autoscale cost``, as ``autoscale replay`` does recordings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from fractions import Fraction
from typing import Final

import numpy as np
from numpy.typing import NDArray

from scheduler_plugin.history.core.samples import HOUR, MINUTE, PLACE, Amount, Millis, Size
from scheduler_plugin.history.core.spans import Span
from scheduler_plugin.history.costs.bills import NOTHING
from scheduler_plugin.history.costs.prices import KIB_OF_GIB, MILLI
from scripts.autoscale.replay.peers import Player
from scripts.autoscale.replay.recording import CAP_UTILISATION, COARSE_STEP, Floats, Timeline, round_up

_LEAST_MOMENTS: Final = 2
_DECISIONS: Final = 12
STEP: Final[Millis] = MINUTE
"""How fine the recorded need is asked for."""


@dataclass(frozen=True, slots=True)
class ReplayedResource:
    """A replayed resource: its names, its columns, its amounts per vCPU or GiB, and its part of a size."""

    name: str
    key: str
    unit: str
    need: int
    size: int
    scale: int
    of: Callable[[Size], Amount]


# CPU is played in vCPUs and memory in GiB, independently of each other.
CPU: Final = ReplayedResource(
    "CPU", "cpu", "vCPU-h", PLACE["need_cpu"], PLACE["size_cpu"], MILLI, lambda size: size.cpu
)
MEMORY: Final = ReplayedResource(
    "memory", "gib", "GiB-h", PLACE["need_mem"], PLACE["size_mem"], KIB_OF_GIB, lambda size: size.mem
)


@dataclass(frozen=True, slots=True)
class Replayed:
    """vCPU-hours or GiB-hours: as recorded, under the policy, needed, and needed but missed by the policy."""

    recorded: Fraction = NOTHING
    played: Fraction = NOTHING
    missed: Fraction = NOTHING
    needed: Fraction = NOTHING

    def __add__(self, other: Replayed) -> Replayed:
        return Replayed(*(getattr(self, part.name) + getattr(other, part.name) for part in fields(self)))

    @property
    def missed_percent(self) -> float:
        """Share of the need, in percent, above what the policy gave."""
        return float(100 * self.missed / self.needed) if self.needed else 0.0


Bounds = tuple[Size | None, Size | None]
"""The bounds of a VM, if known."""


def replayed(
    name: str, spans: Sequence[Span], player: Player, bounds: Bounds, what: ReplayedResource
) -> Replayed | None:
    """One VM's need through a policy, within its bounds; None if too little of it is known."""
    # Only time in which the need and the size were known counts.
    known_spans = [span for span in spans if span.known_times[what.need] and span.known_times[what.size]]
    if len(known_spans) < _LEAST_MOMENTS or not any(span.sums[what.need] for span in known_spans):
        return None
    begin = known_spans[0].since
    starts = np.array([(span.since - begin) / 1000 for span in known_spans])
    ends = np.array([(span.until - begin) / 1000 for span in known_spans])
    needs = np.array([span.sums[what.need] / span.known_times[what.need] / what.scale for span in known_spans])
    line = _timeline(name, starts, ends, needs)
    least, most = (None if limit is None else what.of(limit) / what.scale for limit in bounds)
    allocated = np.clip(player(line), least, most) if bounds != (None, None) else player(line)
    instants = np.arange(len(line.demand)) * line.step
    # The gaps between spans are played through, so that the policy has a past there, and left out of the sums.
    counts = instants < ends[np.searchsorted(starts, instants + 1e-9, side="right") - 1] - 1e-9
    missed = np.maximum(0.0, line.demand - allocated)
    sums = (_hours(amounts, counts, line.step) for amounts in (allocated, missed, line.demand))
    return Replayed(Fraction(sum(span.sums[what.size] for span in known_spans), what.scale * HOUR), *sums)


def _timeline(name: str, starts: Floats, ends: Floats, needs: Floats) -> Timeline:
    """The need on an even grid; it holds through gaps."""
    # A dozen decisions within a usual span: a need that is recorded by the hour cannot be replayed every 5 s.
    step = max(COARSE_STEP, float(np.median(ends - starts)) / _DECISIONS)
    instants = np.arange(0.0, ends[-1], step)
    demand = needs[np.searchsorted(starts, instants + 1e-9, side="right") - 1]
    return Timeline(name, step, demand, 0, round_up(float(demand.max()) / CAP_UTILISATION))


def _hours(amounts: Floats, counts: NDArray[np.bool_], step: float) -> Fraction:
    return Fraction(round(float(amounts[counts].sum()) * step * 1000), 1000 * 3600)
