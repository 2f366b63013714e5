"""A group of equal replicas that share a recorded demand, and what is seen of it every look.

Rules that hold here:

- Replicas share the demand evenly. What they need is seen also where it is more than they request: containers may use
  what a node has to spare. Demand above what the serving replicas request counts as not covered.
- A replica costs from when it is ordered and serves a little later. One that goes, goes at once.
- A look comes every minute, on fine recordings every 15 s; what it decides holds from the next step on.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from math import ceil
from typing import Final

import numpy as np

from scheduler_plugin.groups.core.workload import ReplicaBounds
from scripts.autoscale.replay.recording import COARSE_STEP, Floats, Recording, Timeline, timeline

BEGIN: Final = datetime(2026, 5, 4, tzinfo=UTC)
"""A Monday: when every recording begins."""

LOOK: Final = 60.0
FINE_LOOK: Final = 15.0
START: Final = 90.0
"""Seconds until a new replica serves."""

UNIT: Final = 50
"""Thousandths of a vCPU: the step of every size."""

REPLICAS: Final = ReplicaBounds(2, 20)
"""Two, so that one may fail."""

TYPICAL: Final = 8
"""So many replicas of the usual size carry the recording's peak."""


@dataclass(frozen=True, slots=True)
class Shape:
    """What a replica may request, in thousandths of a vCPU: at least ``least``, at most ``most``, and ``usual`` where
    its size is fixed.
    """

    least: int
    most: int
    usual: int

    @classmethod
    def of(cls, peak: float) -> Shape:
        """For a demand of at most ``peak`` vCPUs: two of the largest carry three quarters more than the peak."""
        usual = rounded(peak * 1000 / TYPICAL)
        return cls(max(UNIT, rounded(usual / 4)), rounded(peak * 875), usual)


def rounded(milli: float) -> int:
    """Up to a whole number of units, one or more."""
    return max(1, ceil(milli / UNIT - 1e-9)) * UNIT


@dataclass(frozen=True, slots=True)
class Look:
    """What a policy sees: the replicas that were ordered and those that serve, the size of each, and what each of
    those that serve needs; in thousandths of a vCPU.
    """

    now: datetime
    replicas: int
    ready: int
    size: int
    used: int


@dataclass(frozen=True, slots=True)
class Wanted:
    """So many replicas of such a size, in thousandths of a vCPU."""

    replicas: int
    size: int


GroupPlayer = Callable[[Shape], Callable[[Look], Wanted]]
"""Begins to play a recording with such a shape: what is wanted after every look."""


@dataclass(frozen=True)
class GroupPlayed:
    """What was ordered and what served at every step: ``replicas`` of ``size`` (vCPUs), of which ``serving`` served."""

    replicas: Floats
    serving: Floats
    size: Floats


def group_timeline(recording: Recording, speed: float) -> Timeline:
    """The recording with a step for every look."""
    line = timeline(recording, speed)
    every = round((LOOK if line.step >= COARSE_STEP else FINE_LOOK) / line.step)
    return replace(line, step=line.step * every, demand=line.demand[::every], warm_up=line.warm_up // every)


def play_group(line: Timeline, player: GroupPlayer) -> GroupPlayed:
    """One policy on one recording, from four replicas of the usual size on."""
    shape = Shape.of(float(line.demand.max()))
    policy, has, ready = player(shape), Wanted(4, shape.usual), 4
    starting: list[tuple[float, int]] = []
    rows = np.empty((3, len(line.demand)))
    for index, demand in enumerate(line.demand.tolist()):
        at = index * line.step
        ready = sum((count for begun, count in starting if at - begun >= START), ready)
        starting = [each for each in starting if at - each[0] < START]
        rows[:, index] = has.replicas, ready, has.size / 1000
        used = round(demand * 1000 / ready)
        found = policy(Look(BEGIN + timedelta(seconds=at), has.replicas, ready, has.size, used))
        wanted = Wanted(REPLICAS.clamp(found.replicas), min(shape.most, max(shape.least, rounded(found.size))))
        if wanted.replicas > has.replicas:
            starting.append((at, wanted.replicas - has.replicas))
        elif wanted.replicas < has.replicas:
            ready = min(ready, wanted.replicas)
            starting = [(starting[0][0], wanted.replicas - ready)] if wanted.replicas > ready else []
        has = wanted
    return GroupPlayed(*rows)


def oracle(line: Timeline) -> Floats:
    """The least that covers the demand of every moment, in vCPUs, by the best number of replicas and size for it."""
    shape, demand = Shape.of(float(line.demand.max())), line.demand * 1000
    best = np.full(len(demand), np.inf)
    for replicas in range(REPLICAS.min, REPLICAS.max + 1):
        size = np.maximum(shape.least, np.ceil(demand / replicas / UNIT - 1e-9) * UNIT)
        best = np.minimum(best, np.where(size <= shape.most, replicas * size, np.inf))
    return best / 1000
