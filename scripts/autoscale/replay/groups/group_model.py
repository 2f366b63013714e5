"""Replays a recorded demand that equal replicas of a group share evenly.

Demand above the requests of the serving replicas counts as not covered.
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
from scripts.autoscale.replay.play import PolicyFigures, ReplayResult, shortage
from scripts.autoscale.replay.recording import COARSE_STEP, Floats, Recording, Timeline, timeline

BEGIN: Final = datetime(2026, 5, 4, tzinfo=UTC)
"""The start of every recording, a Monday."""

DECISION_INTERVAL: Final = 60.0
FINE_DECISION_INTERVAL: Final = 15.0
DEFAULT_LAGS: Final = Lags()
"""Rolling updates, pods that take 90 s to become ready, and metrics that are 30 s old."""

UNIT: Final = 50
"""Step of all sizes in thousandths of a vCPU."""

REPLICAS: Final = ReplicaBounds(2, 20)
"""At least two, so that one may fail."""

TYPICAL: Final = 8
"""Number of replicas of the usual size that cover the recording's peak."""


@dataclass(frozen=True, slots=True)
class ReplicaShape:
    """Sizes of a replica in thousandths of a vCPU: minimum, maximum, and the ``usual`` one of policies that fix it."""

    minimum: int
    maximum: int
    usual: int

    @classmethod
    def of(cls, peak: float) -> ReplicaShape:
        """Sizes for a demand of at most ``peak`` vCPUs; two replicas of the maximum size cover 175 % of it."""
        usual = rounded(peak * 1000 / TYPICAL)
        return cls(max(UNIT, rounded(usual / 4)), rounded(peak * 875), usual)


def rounded(milli: float) -> int:
    """Rounds up to at least one whole unit."""
    # The tolerance prevents floating-point errors from rounding up an exact multiple.
    return max(1, ceil(milli / UNIT - 1e-9)) * UNIT


@dataclass(frozen=True, slots=True)
class GroupObservation:
    """A policy's input: the numbers of ordered and ready replicas, their ``size``, and what each ready one ``used``.

    Sizes are in thousandths of a vCPU. ``pods`` are the actual replicas, ``uses`` the metrics of each, and ``load`` is
    what all replicas used together at the time of the metrics; None without metrics.
    """

    now: datetime
    replicas: int
    ready: int
    size: int
    used: int
    pods: RunningPods | None = None
    uses: tuple[ReplicaUse, ...] = ()
    load: int | None = None


@dataclass(frozen=True, slots=True)
class OrderedReplicas:
    """The number of replicas, and their size in thousandths of a vCPU."""

    replicas: int
    size: int


GroupPlayer = Callable[[ReplicaShape], Callable[[GroupObservation], OrderedReplicas]]
"""Starts a policy for a shape; returns a function from observations to orders."""


@dataclass(frozen=True)
class GroupRun:
    """Ordered and serving replicas and their ``size`` in vCPUs at each step.

    ``capacity`` is the serving replicas' capacity; None if all had their ``size``.
    """

    replicas: Floats
    serving: Floats
    size: Floats
    capacity: Floats | None = None

    @property
    def provided(self) -> Floats:
        """Capacity of the serving replicas in vCPUs."""
        return self.serving * self.size if self.capacity is None else self.capacity


def group_timeline(recording: Recording, speed: float) -> Timeline:
    """The recording on a grid of one step per observation: a minute, or 15 s for fine recordings."""
    line = timeline(recording, speed)
    every = round((DECISION_INTERVAL if line.step >= COARSE_STEP else FINE_DECISION_INTERVAL) / line.step)
    return replace(line, step=line.step * every, demand=line.demand[::every], warm_up=line.warm_up // every)


def play_group(line: Timeline, player: GroupPlayer, lags: Lags = DEFAULT_LAGS) -> GroupRun:
    """Replays a recording with a policy, starting with four replicas of the usual size."""
    shape = ReplicaShape.of(float(line.demand.max()))
    policy, group = player(shape), LaggingGroup(lags, 4, shape.usual)
    rows = np.empty((4, len(line.demand)))
    for index, demand in enumerate(line.demand.tolist()):
        at = index * line.step
        group.advance(at, demand * 1000)
        ready = len(group.ready)
        # The policy's order takes effect in the next step.
        rows[:, index] = group.replicas, ready, group.size / 1000, group.capacity / 1000
        # Containers may use more than they request.
        used = round(demand * 1000 / max(1, ready))
        moment = BEGIN + timedelta(seconds=at)
        uses = tuple(group.measured())
        ordered = policy(
            GroupObservation(
                moment, group.replicas, ready, group.size, used, group.running(), uses, group.measured_load
            )
        )
        group.order(REPLICAS.clamp(ordered.replicas), min(shape.maximum, max(shape.minimum, rounded(ordered.size))))
    return GroupRun(*rows)


def oracle(line: Timeline) -> Floats:
    """The smallest capacity in vCPUs that covers the demand at each step, with the best number and size of replicas."""
    shape, demand = ReplicaShape.of(float(line.demand.max())), line.demand * 1000
    # Infinity if no size fits, so that another number of replicas wins.
    best = np.full(len(demand), np.inf)
    for replicas in range(REPLICAS.min, REPLICAS.max + 1):
        size = np.maximum(shape.minimum, np.ceil(demand / replicas / UNIT - 1e-9) * UNIT)
        best = np.minimum(best, np.where(size <= shape.maximum, replicas * size, np.inf))
    return best / 1000


class GroupScore(PolicyFigures, frozen=True):
    """Score of a group; its oracle chooses the number and size of replicas at each step.

    ``replicas_per_hour`` counts added and removed replicas; ``restarts_per_hour`` counts resized ones, which restart
    unless they are VMs or resized in place.
    """

    restarts_per_hour: float
    replicas_per_hour: float

    def __str__(self) -> str:
        """The figures in words."""
        changes = f"{self.replicas_per_hour:.1f} replicas/h  ·  {self.restarts_per_hour:.1f} restarts/h"
        return f"{super().__str__()}  ·  {changes}"


@dataclass(frozen=True)
class GroupReplay(ReplayResult[GroupScore]):
    """A recording replayed as the load of a group, with the orders of each policy by name."""

    orders: Mapping[str, GroupRun]


def replay_groups(
    recordings: Iterable[Recording], players: Mapping[str, GroupPlayer], speed: float, lags: Lags = DEFAULT_LAGS
) -> list[GroupReplay]:
    """Replays all recordings, ``speed`` times faster, with all policies."""
    return [_replayed(group_timeline(recording, speed), players, lags) for recording in recordings]


def _replayed(line: Timeline, players: Mapping[str, GroupPlayer], lags: Lags) -> GroupReplay:
    runs = {name: play_group(line, player, lags) for name, player in players.items()}
    allocations = {name: run.provided for name, run in runs.items()}
    return GroupReplay(line, allocations, {name: group_score(line, run) for name, run in runs.items()}, runs)


def group_score(line: Timeline, run: GroupRun) -> GroupScore:
    """Scores a recording after its warm-up."""
    begin, demand = line.warm_up, line.demand[line.warm_up :]
    replicas, size = run.replicas[begin:], run.size[begin:]
    # A resize restarts the replicas that exist both before and after it.
    resized = np.where(np.diff(size) != 0, np.minimum(replicas[1:], replicas[:-1]), 0.0)
    return GroupScore(
        # A replica costs from its order on, although it serves later.
        float((replicas * size).sum()) / float(oracle(line)[begin:].sum()),
        *shortage(demand, run.provided[begin:]),
        restarts_per_hour=float(resized.sum()) / line.scored_hours,
        replicas_per_hour=float(np.abs(np.diff(replicas)).sum()) / line.scored_hours,
    )
