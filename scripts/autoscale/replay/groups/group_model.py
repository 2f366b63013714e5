"""A group of equal replicas that share a recorded demand evenly, and its observation at every look.

Demand above what the serving replicas request counts as not covered.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from math import ceil
from typing import Final

import numpy as np

from scheduler_plugin.groups.core.recommender.horizontal import ReplicaUse
from scheduler_plugin.groups.core.workload import ReplicaBounds, RunningPods
from scripts.autoscale.replay.groups.lagging_group import LaggingGroup, Lags
from scripts.autoscale.replay.play import Played, PolicyFigures, shortage
from scripts.autoscale.replay.recording import COARSE_STEP, Floats, Recording, Timeline, timeline

BEGIN: Final = datetime(2026, 5, 4, tzinfo=UTC)
"""A Monday: when every recording begins."""

LOOK: Final = 60.0
FINE_LOOK: Final = 15.0
DEFAULT_LAGS: Final = Lags()
"""Rolling updates of pods that take 90 s to be ready, and metrics that are 30 s old."""

UNIT: Final = 50
"""Thousandths of a vCPU: the step of every size."""

REPLICAS: Final = ReplicaBounds(2, 20)
"""Two, so that one may fail."""

TYPICAL: Final = 8
"""This many replicas of the usual size carry the recording's peak."""


@dataclass(frozen=True, slots=True)
class ReplicaShape:
    """Sizes of a replica in thousandths of a vCPU: the least, the most, and the ``usual`` one, if it is fixed."""

    least: int
    most: int
    usual: int

    @classmethod
    def of(cls, peak: float) -> ReplicaShape:
        """For a demand of at most ``peak`` vCPUs: two of the largest carry three quarters more than the peak."""
        usual = rounded(peak * 1000 / TYPICAL)
        return cls(max(UNIT, rounded(usual / 4)), rounded(peak * 875), usual)


def rounded(milli: float) -> int:
    """Up to a whole number of units, one or more."""
    # The tolerance keeps an exact multiple from being rounded up by floating point.
    return max(1, ceil(milli / UNIT - 1e-9)) * UNIT


@dataclass(frozen=True, slots=True)
class GroupObservation:
    """A policy's input: the replicas that were ordered and those that serve, the size of each, and what each of
    those that serve needs; in thousandths of a vCPU. ``pods`` are the replicas as they are, and ``uses`` what metrics
    say of each.
    """

    now: datetime
    replicas: int
    ready: int
    size: int
    used: int
    pods: RunningPods | None = None
    uses: tuple[ReplicaUse, ...] = ()


@dataclass(frozen=True, slots=True)
class OrderedReplicas:
    """This many replicas of such a size, in thousandths of a vCPU."""

    replicas: int
    size: int


GroupPlayer = Callable[[ReplicaShape], Callable[[GroupObservation], OrderedReplicas]]
"""Begins a recording with such a shape; what it returns gives the order after every look."""


@dataclass(frozen=True)
class GroupPlayed:
    """Orders and service at every step; ``capacity``: of all that serve (None: each had its ``size``, in vCPUs)."""

    replicas: Floats
    serving: Floats
    size: Floats
    capacity: Floats | None = None

    @property
    def given(self) -> Floats:
        """Capacity that served, in vCPUs."""
        return self.serving * self.size if self.capacity is None else self.capacity


def group_timeline(recording: Recording, speed: float) -> Timeline:
    """The recording with a step for every look."""
    line = timeline(recording, speed)
    # A look comes every minute, on fine recordings every 15 s.
    every = round((LOOK if line.step >= COARSE_STEP else FINE_LOOK) / line.step)
    return replace(line, step=line.step * every, demand=line.demand[::every], warm_up=line.warm_up // every)


def play_group(line: Timeline, player: GroupPlayer, lags: Lags = DEFAULT_LAGS) -> GroupPlayed:
    """One policy on one recording, from four replicas of the usual size on."""
    shape = ReplicaShape.of(float(line.demand.max()))
    policy, group = player(shape), LaggingGroup(lags, 4, shape.usual)
    rows = np.empty((4, len(line.demand)))
    for index, demand in enumerate(line.demand.tolist()):
        at = index * line.step
        group.advance(at, demand * 1000)
        ready = len(group.ready)
        # Before the policy decides, whose order holds from the next step on.
        rows[:, index] = group.replicas, ready, group.size / 1000, group.capacity / 1000
        # Containers may use what a node has to spare, so the need is seen also above what they request.
        used = round(demand * 1000 / max(1, ready))
        moment = BEGIN + timedelta(seconds=at)
        uses = tuple(group.measured())
        ordered = policy(GroupObservation(moment, group.replicas, ready, group.size, used, group.running(), uses))
        group.order(REPLICAS.clamp(ordered.replicas), min(shape.most, max(shape.least, rounded(ordered.size))))
    return GroupPlayed(*rows)


def oracle(line: Timeline) -> Floats:
    """The least that covers the demand of every moment, in vCPUs, by the best number of replicas and size for it."""
    shape, demand = ReplicaShape.of(float(line.demand.max())), line.demand * 1000
    # Infinity if no size fits, so that another number of replicas wins.
    best = np.full(len(demand), np.inf)
    for replicas in range(REPLICAS.min, REPLICAS.max + 1):
        size = np.maximum(shape.least, np.ceil(demand / replicas / UNIT - 1e-9) * UNIT)
        best = np.minimum(best, np.where(size <= shape.most, replicas * size, np.inf))
    return best / 1000


class GroupScore(PolicyFigures, frozen=True):
    """Of a group; its oracle chooses replicas and size again at every look, and what is not served counts as short.

    ``replicas_per_hour``: replicas added or removed; ``restarts_per_hour``: replicas resized, each of which restarts
    unless it is a VM or is resized in place.
    """

    restarts_per_hour: float
    replicas_per_hour: float

    def __str__(self) -> str:
        """The figures in words."""
        changes = f"{self.replicas_per_hour:.1f} replicas/h  ·  {self.restarts_per_hour:.1f} restarts/h"
        return f"{super().__str__()}  ·  {changes}"


@dataclass(frozen=True)
class GroupReplay(Played[GroupScore]):
    """One recording as the load of a group, with the orders of every policy by name."""

    orders: Mapping[str, GroupPlayed]


def replay_groups(
    recordings: Iterable[Recording], players: Mapping[str, GroupPlayer], speed: float, lags: Lags = DEFAULT_LAGS
) -> list[GroupReplay]:
    """Plays every recording, ``speed`` times faster, through every policy."""
    return [_replayed(group_timeline(recording, speed), players, lags) for recording in recordings]


def _replayed(line: Timeline, players: Mapping[str, GroupPlayer], lags: Lags) -> GroupReplay:
    orders = {name: play_group(line, player, lags) for name, player in players.items()}
    allocations = {name: played.given for name, played in orders.items()}
    return GroupReplay(line, allocations, {name: group_score(line, played) for name, played in orders.items()}, orders)


def group_score(line: Timeline, played: GroupPlayed) -> GroupScore:
    """Scores the part of a recording that counts."""
    begin, demand = line.warm_up, line.demand[line.warm_up :]
    replicas, size = played.replicas[begin:], played.size[begin:]
    # A resize restarts the replicas that exist before and after it; added or removed ones restart nothing.
    resized = np.where(np.diff(size) != 0, np.minimum(replicas[1:], replicas[:-1]), 0.0)
    return GroupScore(
        # vCPU-seconds that were ordered: a replica costs from its order on, though it serves later.
        float((replicas * size).sum()) / float(oracle(line)[begin:].sum()),
        *shortage(demand, played.given[begin:]),
        restarts_per_hour=float(resized.sum()) / line.scored_hours,
        replicas_per_hour=float(np.abs(np.diff(replicas)).sum()) / line.scored_hours,
    )
