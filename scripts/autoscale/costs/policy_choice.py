"""The policy that ``autoscale cost --policy`` names: a known one, stages of one resource, or an agent's whole one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import Final

import numpy as np

from agent.config import PolicyError as AgentPolicyError
from agent.config import read_policy
from agent.core.policy import Policy as AgentPolicy
from protocol.smoothing.default import DEFAULT_MEMORY
from protocol.smoothing.policy import SmoothingPolicy, SmoothingPolicyError, parse_policy
from protocol.smoothing.stage import Sample
from protocol.units import Instant
from protocol.yaml_text import YamlError, read_yaml
from scripts.autoscale.replay.peers import PLAYERS, Player, fixed_at_peak, fixed_high_percentile, play_policy
from scripts.autoscale.replay.recording import Floats, Timeline

GIB: Final = 1024**3
SLOT: Final = 128 * 1024**2
"""Memory is given in steps of this: a history does not know the slots of a VM."""

_STAGES: Final = frozenset({"stages", "resource"})


@dataclass(frozen=True, slots=True)
class ChosenPolicy:
    """Policy to replay for each resource; None leaves the resource as it was."""

    label: str
    cpu: Player | None
    memory: Player | None


def play_memory(policy: SmoothingPolicy) -> Player:
    """A policy of stages for memory, asked at every step; timelines and allocations are in GiB."""

    def player(timeline: Timeline) -> Floats:
        target = policy.start().target
        most = float(timeline.demand.max()) * GIB / 0.9
        current, allocation = _slots(float(timeline.demand[0]) * GIB), []
        for index, demand in enumerate(timeline.demand.tolist()):
            # Before the policy decides, whose decision takes effect at the next step.
            allocation.append(current / GIB)
            wanted = target(Instant(index * timeline.step), Sample(demand * GIB, current))
            current = _slots(min(most, wanted))
        return np.array(allocation)

    return player


def _slots(amount: float) -> int:
    # The tolerance keeps an exact multiple of a slot from being rounded up by floating point.
    return max(1, ceil(amount / SLOT - 1e-9)) * SLOT


_MEMORY: Final[Mapping[str, Player]] = {
    "default": play_memory(DEFAULT_MEMORY),
    "fixed-p99.5": fixed_high_percentile,
    "fixed-peak": fixed_at_peak,
}
"""What known policies do about memory; the others are about CPU alone."""


def chosen_policy(name: str) -> ChosenPolicy:
    """A known policy, or that of a file. Raises ``SmoothingPolicyError`` with the file and the path in it."""
    if name in PLAYERS:
        return ChosenPolicy(name, PLAYERS[name], _MEMORY.get(name))
    path = Path(name)
    try:
        text = path.read_text(encoding="utf-8")
        document = read_yaml(text)
        # A file of an agent's whole policy has no `stages` of its own at the top.
        if isinstance(document, dict) and not document.keys() & _STAGES:
            smoothing = read_policy(text, AgentPolicy()).smoothing
            return ChosenPolicy(path.stem, play_policy(smoothing.cpu), play_memory(smoothing.memory))
        policy = parse_policy(document)
    except OSError as error:
        raise SmoothingPolicyError(
            name, f"neither one of {', '.join(PLAYERS)} nor a readable file ({error.strerror})"
        ) from None
    except (UnicodeDecodeError, YamlError, AgentPolicyError, SmoothingPolicyError) as error:
        # Errors of parsers have several lines; a command says why in one.
        raise SmoothingPolicyError(name, " ".join(str(error).split())) from None
    if policy.resource == "memory":
        # A policy of one resource leaves the other as it was.
        return ChosenPolicy(path.stem, None, play_memory(policy))
    return ChosenPolicy(path.stem, play_policy(policy), None)
