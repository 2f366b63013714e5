"""Every recording through every policy: the pure heart of ``autoscale replay``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic

import msgspec
import yaml

from protocol.smoothing.policy import SmoothingPolicyError, parse_policy
from scripts.autoscale.replay.peers import PLAYERS, Player, play_policy
from scripts.autoscale.replay.recording import Floats, Recording, Timeline, timeline
from scripts.autoscale.replay.score import S, Score, overall, score


@dataclass(frozen=True)
class Played(Generic[S]):
    """One recording, with what every policy gave at each step, in vCPUs, and its score, by name."""

    timeline: Timeline
    allocations: Mapping[str, Floats]
    scores: Mapping[str, S]


def play(recordings: Sequence[Recording], players: Mapping[str, Player], speed: float) -> list[Played[Score]]:
    """Plays every recording, ``speed`` times faster, through every policy."""
    return [_play_one(timeline(recording, speed), players) for recording in recordings]


def _play_one(line: Timeline, players: Mapping[str, Player]) -> Played[Score]:
    allocations = {name: player(line) for name, player in players.items()}
    return Played(line, allocations, {name: score(line, allocation) for name, allocation in allocations.items()})


def totals(played: Sequence[Played[S]]) -> dict[str, S]:
    """The overall score of every policy, in the order in which they were played."""
    return {name: overall([one.scores[name] for one in played]) for name in played[0].scores}


def choose_players(names: Sequence[str]) -> dict[str, Player]:
    """The players named, each a known name or a policy file (YAML or JSON); all known ones if none is named.

    A file is called by its stem if that is unambiguous. Raises ``SmoothingPolicyError`` with the file and the path in
    it.
    """
    # A dict drops repeated names and keeps their order.
    labels = [name if name in PLAYERS else Path(name).stem for name in dict.fromkeys(names)]
    chosen = {
        # A stem that is ambiguous, or that is a known policy's name, gives way to the path.
        label if labels.count(label) == 1 and (label == name or label not in PLAYERS) else name: _player(name)
        for label, name in zip(labels, dict.fromkeys(names), strict=True)
    }
    return chosen or dict(PLAYERS)


def _player(name: str) -> Player:
    if name in PLAYERS:
        return PLAYERS[name]
    path = Path(name)
    try:
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SmoothingPolicyError(
            name, f"neither one of {', '.join(PLAYERS)} nor a readable file ({error.strerror})"
        ) from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        # Messages of YAML have several lines; a command reports errors in one.
        raise SmoothingPolicyError(name, f"not YAML: {' '.join(str(error).split())}") from None
    try:
        policy = parse_policy(document)
    except SmoothingPolicyError as error:
        raise SmoothingPolicyError(name, str(error)) from None
    if policy.resource != "cpu":
        raise SmoothingPolicyError(
            name, f"resource: expected cpu, because recordings are played on CPU, got {policy.resource}"
        )
    return play_policy(policy)


def as_json(played: Sequence[Played[S]], speed: float) -> bytes:
    """All scores as JSON: per recording and overall, by policy."""
    document = {
        "speed": speed,
        "recordings": [
            {
                "name": one.timeline.name,
                "step_seconds": one.timeline.step,
                "scored_hours": one.timeline.scored_hours,
                "scores": one.scores,
            }
            for one in played
        ],
        "overall": totals(played),
    }
    return msgspec.json.format(msgspec.json.encode(document), indent=2)
