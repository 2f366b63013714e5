"""Replays VMs' recorded needs through a policy, for ``autoscale cost``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields
from fractions import Fraction
from typing import Final

import numpy as np

from scheduler_plugin.history.core.samples import COLUMN_INDEX, HOUR, MINUTE, Amount, Millis, Size
from scheduler_plugin.history.core.spans import Span, joined
from scheduler_plugin.history.costs.bills import NOTHING
from scheduler_plugin.history.costs.prices import KIB_OF_GIB, MILLI
from scripts.autoscale.replay.peers import Player
from scripts.autoscale.replay.recording import CAP_UTILISATION, COARSE_STEP, Floats, Timeline, round_up

_LEAST_MOMENTS: Final = 2
_DECISIONS: Final = 12
STEP: Final[Millis] = MINUTE
"""Resolution of the recorded need."""


@dataclass(frozen=True, slots=True)
class ReplayedResource:
    """A replayed resource: its names, its columns in the history, its units per vCPU or GiB, and its part of a size."""

    name: str
    key: str
    unit: str
    need: int
    size: int
    scale: int
    of: Callable[[Size], Amount]


# CPU is played in vCPUs and memory in GiB, independently of each other.
CPU: Final = ReplayedResource(
    "CPU", "cpu", "vCPU-h", COLUMN_INDEX["need_cpu"], COLUMN_INDEX["size_cpu"], MILLI, lambda size: size.cpu
)
MEMORY: Final = ReplayedResource(
    "memory", "gib", "GiB-h", COLUMN_INDEX["need_mem"], COLUMN_INDEX["size_mem"], KIB_OF_GIB, lambda size: size.mem
)


@dataclass(frozen=True, slots=True)
class Replayed:
    """vCPU-hours or GiB-hours: recorded, allocated by the policy, missed by it, and needed."""

    recorded: Fraction = NOTHING
    played: Fraction = NOTHING
    missed: Fraction = NOTHING
    needed: Fraction = NOTHING

    def __add__(self, other: Replayed) -> Replayed:
        return Replayed(*(getattr(self, part.name) + getattr(other, part.name) for part in fields(self)))

    @property
    def missed_percent(self) -> float:
        """Percentage of the need that exceeds the policy's allocation."""
        return float(100 * self.missed / self.needed) if self.needed else 0.0


Bounds = tuple[Size | None, Size | None]
"""The bounds of a VM, if known."""


def replayed(
    name: str, spans: Sequence[Span], player: Player, bounds: Bounds, what: ReplayedResource
) -> Replayed | None:
    """Replays a VM's need through a policy, within its bounds; None if too little of it is known."""
    # Only time in which both the need and the size were known counts. A VM without a size is asleep.
    known_spans = _disjoint(span for span in spans if span.known_times[what.need] and span.sums[what.size])
    if len(known_spans) < _LEAST_MOMENTS or not any(span.sums[what.need] for span in known_spans):
        return None
    begin = known_spans[0].since
    starts = np.array([(span.since - begin) / 1000 for span in known_spans])
    ends = np.array([(span.until - begin) / 1000 for span in known_spans])
    needs = np.array([span.sums[what.need] / span.known_times[what.need] / what.scale for span in known_spans])
    line = _timeline(name, starts, ends, needs)
    least, most = (None if limit is None else what.of(limit) / what.scale for limit in bounds)
    allocated = np.clip(player(line), least, most) if bounds != (None, None) else player(line)
    times = np.arange(len(line.demand)) * line.step
    # Gaps between and within spans are replayed as well, so that the policy has a past, but they do not count.
    known_shares = np.array([span.known_times[what.size] / (span.until - span.since) for span in known_spans])
    place = np.searchsorted(starts, times + 1e-9, side="right") - 1
    counts = np.where(times < ends[place] - 1e-9, known_shares[place], 0.0)
    missed = np.maximum(0.0, line.demand - allocated)
    sums = (_hours(amounts, counts, line.step) for amounts in (allocated, missed, line.demand))
    return Replayed(Fraction(sum(span.sums[what.size] for span in known_spans), what.scale * HOUR), *sums)


def _disjoint(spans: Iterable[Span]) -> list[Span]:
    """Join overlapping spans, which are in the order of their start: of a VM that moved away and back within an hour,
    the history has one span on each node.
    """
    groups: list[list[Span]] = []
    end = 0
    for span in spans:
        if span.since < end:
            groups[-1].append(span)
        else:
            groups.append([span])
        end = max(end, span.until)
    return [joined(group) for group in groups]


def _timeline(name: str, starts: Floats, ends: Floats, needs: Floats) -> Timeline:
    """The need on an even grid; gaps continue the last value."""
    # A dozen decisions per typical span: replaying an hourly need every 5 s would be pointless.
    step = max(COARSE_STEP, float(np.median(ends - starts)) / _DECISIONS)
    times = np.arange(0.0, ends[-1], step)
    demand = needs[np.searchsorted(starts, times + 1e-9, side="right") - 1]
    return Timeline(name, step, demand, 0, round_up(float(demand.max()) / CAP_UTILISATION))


def _hours(amounts: Floats, counts: Floats, step: float) -> Fraction:
    """The integral of ``amounts``, of which the share ``counts`` (0..1) of each step counts."""
    return Fraction(round(float((amounts * counts).sum()) * step * 1000), 1000 * 3600)
