"""Cost of a policy for a group, and the demand that it missed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np

from scripts.autoscale.replay.groups.group_model import (
    DEFAULT_LAGS,
    GroupPlayed,
    GroupPlayer,
    group_timeline,
    oracle,
    play_group,
)
from scripts.autoscale.replay.groups.lagging_group import Lags
from scripts.autoscale.replay.recording import Recording, Timeline


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
