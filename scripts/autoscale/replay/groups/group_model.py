"""A group of equal replicas that share a recorded demand evenly, and its observation at every look.

Demand above what the serving replicas request counts as not covered.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from math import ceil
from typing import Final

import msgspec
import numpy as np

from scheduler_plugin.groups.core.recommender.horizontal import ReplicaUse
from scheduler_plugin.groups.core.workload import ReplicaBounds, RunningPods
from scripts.autoscale.replay.groups.lagging_group import LaggingGroup, Lags
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
    """Sizes of a replica, in thousandths of a vCPU: at least ``least``, at most ``most``, and ``usual`` if
    its size is fixed.
    """

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
    """Orders and service at every step: ``replicas`` of ``size`` (vCPUs), of which ``serving`` served.

    ``capacity`` is what these had together; None: each had its size.
    """

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


class GroupScore(msgspec.Struct, frozen=True):
    """The five figures of one policy on one recording, or overall.

    - ``cost``: vCPU-seconds ordered over those of an oracle that chooses replicas and size again at every look.
    - ``insufficient_percent``: the part of the demand that exceeded what served; ``throttled_percent``: of the time.
    - ``replicas_per_hour``: replicas added or removed; ``restarts_per_hour``: replicas resized, each of which restarts
      unless it is a VM or is resized in place.
    """

    cost: float
    insufficient_percent: float
    throttled_percent: float
    restarts_per_hour: float
    replicas_per_hour: float


@dataclass(frozen=True)
class GroupReplay:
    """One recording, with what every policy gave and its score, by name."""

    timeline: Timeline
    played: Mapping[str, GroupPlayed]
    scores: Mapping[str, GroupScore]


def replay_groups(
    recordings: Sequence[Recording], players: Mapping[str, GroupPlayer], speed: float, lags: Lags = DEFAULT_LAGS
) -> list[GroupReplay]:
    """Plays every recording, ``speed`` times faster, through every policy."""
    return [_replayed(group_timeline(recording, speed), players, lags) for recording in recordings]


def _replayed(line: Timeline, players: Mapping[str, GroupPlayer], lags: Lags) -> GroupReplay:
    played = {name: play_group(line, player, lags) for name, player in players.items()}
    return GroupReplay(line, played, {name: group_score(line, played_group) for name, played_group in played.items()})


def group_score(line: Timeline, played: GroupPlayed) -> GroupScore:
    """Scores the part of a recording that counts."""
    begin, demand = line.warm_up, line.demand[line.warm_up :]
    replicas, size = played.replicas[begin:], played.size[begin:]
    missing = np.maximum(0.0, demand - played.given[begin:])
    # A resize restarts the replicas that exist before and after it; added or removed ones restart nothing.
    resized = np.where(np.diff(size) != 0, np.minimum(replicas[1:], replicas[:-1]), 0.0)
    best, needed = float(oracle(line)[begin:].sum()), float(demand.sum())
    return GroupScore(
        # vCPU-seconds that were ordered: a replica costs from its order on, though it serves later.
        cost=float((replicas * size).sum()) / best,
        insufficient_percent=100 * float(missing.sum()) / needed if needed else 0.0,
        # A tolerance, or rounding would count as a shortage.
        throttled_percent=100 * float((missing > 1e-9).mean()),
        restarts_per_hour=float(resized.sum()) / line.scored_hours,
        replicas_per_hour=float(np.abs(np.diff(replicas)).sum()) / line.scored_hours,
    )


def group_totals(replays: Sequence[GroupReplay]) -> dict[str, GroupScore]:
    """For every policy the geometric mean of its costs and the plain mean of everything else."""
    return {name: _overall([replay.scores[name] for replay in replays]) for name in replays[0].scores}


def _overall(scores: Sequence[GroupScore]) -> GroupScore:
    return GroupScore(
        # Costs are ratios, so their mean is the geometric one.
        cost=float(np.exp(np.mean([np.log(one_score.cost) for one_score in scores]))),
        insufficient_percent=float(np.mean([one_score.insufficient_percent for one_score in scores])),
        throttled_percent=float(np.mean([one_score.throttled_percent for one_score in scores])),
        restarts_per_hour=float(np.mean([one_score.restarts_per_hour for one_score in scores])),
        replicas_per_hour=float(np.mean([one_score.replicas_per_hour for one_score in scores])),
    )
