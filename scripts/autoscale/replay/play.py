"""Replays recordings with policies, and scores them (pure)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

import msgspec
import numpy as np

from protocol.smoothing.policy import SmoothingPolicyError, parse_policy
from protocol.yaml_text import YamlError, read_yaml
from scripts.autoscale.replay.peers import PLAYERS, Player, play_policy
from scripts.autoscale.replay.recording import UNIT, Floats, Recording, Timeline, timeline


class PolicyFigures(msgspec.Struct, frozen=True):
    """The figures of a policy for a recording, or overall.

    - ``cost``: allocated (for a group: ordered) vCPU-seconds, relative to the oracle's.
    - ``insufficient_percent``: the share of the demand that exceeded the allocation.
    - ``throttled_percent``: the share of time in which it did.
    """

    cost: float
    insufficient_percent: float
    throttled_percent: float

    def __str__(self) -> str:
        """The figures in words."""
        return f"{self.cost:.2f} x oracle  ·  {self.insufficient_percent:.2f} % of demand short"


class Score(PolicyFigures, frozen=True):
    """Score of a VM; its oracle allocates the demand rounded up to whole units.

    ``actions_per_hour`` counts changes of the allocation.
    """

    actions_per_hour: float

    def __str__(self) -> str:
        """The figures in words."""
        return f"{super().__str__()}  ·  {self.actions_per_hour:.0f} resizes/h"


S = TypeVar("S", bound=PolicyFigures)


def score(timeline: Timeline, allocation: Floats) -> Score:
    """Scores an allocation (vCPUs at each step) after the warm-up."""
    demand, allocated = timeline.demand[timeline.warm_up :], allocation[timeline.warm_up :]
    oracle = float((np.ceil(demand / UNIT - 1e-9) * UNIT).sum())
    return Score(
        float(allocated.sum()) / oracle if oracle else float("nan"),
        *shortage(demand, allocated),
        actions_per_hour=float((np.diff(allocated) != 0).sum()) / timeline.scored_hours,
    )


def shortage(demand: Floats, allocated: Floats) -> tuple[float, float]:
    """Percentage of the demand that exceeded the allocation, and percentage of time in which it did."""
    missing, needed = np.maximum(0.0, demand - allocated), float(demand.sum())
    # The tolerance ignores rounding errors.
    return 100 * float(missing.sum()) / needed if needed else 0.0, 100 * float((missing > 1e-9).mean())


def overall(scores: Sequence[S]) -> S:
    """The geometric mean of the costs, and the arithmetic means of all else, of at least one score."""
    # Without zero and NaN, which have no logarithm.
    costs = [score.cost for score in scores if score.cost > 0]
    means = (float(np.mean(figures)) for figures in zip(*map(msgspec.structs.astuple, scores), strict=True))
    # Costs are ratios.
    cost = float(np.exp(np.mean(np.log(costs)))) if costs else float("nan")
    return msgspec.structs.replace(type(scores[0])(*means), cost=cost)


@dataclass(frozen=True)
class ReplayResult(Generic[S]):
    """A replayed recording, with the allocations in vCPUs at each step and the score of each policy, by name."""

    timeline: Timeline
    allocations: Mapping[str, Floats]
    scores: Mapping[str, S]


def play(recordings: Iterable[Recording], players: Mapping[str, Player], speed: float) -> list[ReplayResult[Score]]:
    """Replays all recordings, ``speed`` times faster, with all policies."""
    return [_play_one(timeline(recording, speed), players) for recording in recordings]


def _play_one(line: Timeline, players: Mapping[str, Player]) -> ReplayResult[Score]:
    allocations = {name: player(line) for name, player in players.items()}
    return ReplayResult(line, allocations, {name: score(line, allocation) for name, allocation in allocations.items()})


def totals(results: Sequence[ReplayResult[S]]) -> dict[str, S]:
    """The overall score of each policy, in the order of replay."""
    return {name: overall([result.scores[name] for result in results]) for name in results[0].scores}


def choose_players(names: Sequence[str]) -> dict[str, Player]:
    """The players of named policies or policy files (YAML or JSON); all named policies if ``names`` is empty.

    A file's label is its stem if that is unambiguous. Raises ``SmoothingPolicyError``, which names the file and field.
    """
    # A dict drops duplicates and keeps the order.
    labels = [name if name in PLAYERS else Path(name).stem for name in dict.fromkeys(names)]
    chosen = {
        # Use the path if the stem is ambiguous, or a known policy's name.
        label if labels.count(label) == 1 and (label == name or label not in PLAYERS) else name: _player(name)
        for label, name in zip(labels, dict.fromkeys(names), strict=True)
    }
    return chosen or dict(PLAYERS)


def _player(name: str) -> Player:
    if name in PLAYERS:
        return PLAYERS[name]
    path = Path(name)
    try:
        document = read_yaml(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SmoothingPolicyError(
            name, f"neither one of {', '.join(PLAYERS)} nor a readable file ({error.strerror})"
        ) from None
    except (YamlError, UnicodeDecodeError) as error:
        raise SmoothingPolicyError(name, str(error)) from None
    try:
        policy = parse_policy(document)
    except SmoothingPolicyError as error:
        raise SmoothingPolicyError(name, str(error)) from None
    if policy.resource != "cpu":
        raise SmoothingPolicyError(
            name, f"resource: expected cpu, because recordings are of CPU, got {policy.resource}"
        )
    return play_policy(policy)


def as_json(results: Sequence[ReplayResult[S]], speed: float, sleeps: Sequence[object] = ()) -> bytes:
    """All scores as JSON: per recording and overall, by policy; ``sleeps`` are the savings by sleep, if any."""
    document = {
        "speed": speed,
        "recordings": [
            {
                "name": result.timeline.name,
                "step_seconds": result.timeline.step,
                "scored_hours": result.timeline.scored_hours,
                "scores": result.scores,
            }
            for result in results
        ],
        "overall": totals(results),
        **({"sleep": sleeps} if sleeps else {}),
    }
    return msgspec.json.format(msgspec.json.encode(document), indent=2)
