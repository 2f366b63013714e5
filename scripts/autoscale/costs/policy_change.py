"""The effect of a policy on a fleet: the policy's replay, and the change summed over VMs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
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
from scheduler_plugin.history.core.samples import VmRecord
from scheduler_plugin.history.core.spans import Span
from scheduler_plugin.history.costs.bills import NOTHING, KeyOf
from scheduler_plugin.history.costs.prices import Price
from scheduler_plugin.history.costs.rendering import rounded
from scripts.autoscale.costs.policy_replay import CPU, MEMORY, Replayed, ReplayedResource, replayed
from scripts.autoscale.replay.peers import PLAYERS, Player, fixed_at_peak, fixed_high_percentile, play_policy
from scripts.autoscale.replay.recording import Floats, Timeline

GIB: Final = 1024**3
SLOT: Final = 128 * 1024**2
"""Step size of memory; the history does not contain the slot size of VMs."""

_STAGES: Final = frozenset({"stages", "resource"})


@dataclass(frozen=True, slots=True)
class ChosenPolicy:
    """The players of the resources that a policy covers; others keep their recorded sizes."""

    label: str
    players: Mapping[ReplayedResource, Player]


def play_memory(policy: SmoothingPolicy) -> Player:
    """A player of a memory policy, which decides at every step; timelines and allocations are in GiB."""

    def player(timeline: Timeline) -> Floats:
        target = policy.start().target
        most = float(timeline.demand.max()) * GIB / 0.9
        current, allocation = _slots(float(timeline.demand[0]) * GIB), []
        for index, demand in enumerate(timeline.demand.tolist()):
            # The decision takes effect at the next step.
            allocation.append(current / GIB)
            decided = target(Instant(index * timeline.step), Sample(demand * GIB, current))
            current = _slots(min(most, decided))
        return np.array(allocation)

    return player


def _slots(amount: float) -> int:
    # The tolerance prevents floating-point errors from rounding up an exact multiple of a slot.
    return max(1, ceil(amount / SLOT - 1e-9)) * SLOT


_MEMORY: Final[Mapping[str, Player]] = {
    "default": play_memory(DEFAULT_MEMORY),
    "fixed-p99.5": fixed_high_percentile,
    "fixed-peak": fixed_at_peak,
}
"""Memory players of named policies; the others cover only CPU."""


def chosen_policy(name: str) -> ChosenPolicy:
    """A named policy, or one from a file. Raises ``SmoothingPolicyError``, which names the file and the field."""
    if name in PLAYERS:
        memory = {MEMORY: _MEMORY[name]} if name in _MEMORY else {}
        return ChosenPolicy(name, {CPU: PLAYERS[name], **memory})
    path = Path(name)
    try:
        text = path.read_text(encoding="utf-8")
        document = read_yaml(text)
        # The file contains an agent's whole policy, or the stages of one resource.
        if isinstance(document, dict) and not document.keys() & _STAGES:
            smoothing = read_policy(text, AgentPolicy()).smoothing
            return ChosenPolicy(path.stem, {CPU: play_policy(smoothing.cpu), MEMORY: play_memory(smoothing.memory)})
        policy = parse_policy(document)
    except OSError as error:
        raise SmoothingPolicyError(
            name, f"neither one of {', '.join(PLAYERS)} nor a readable file ({error.strerror})"
        ) from None
    except (UnicodeDecodeError, YamlError, AgentPolicyError, SmoothingPolicyError) as error:
        # Parsers' errors may have several lines.
        raise SmoothingPolicyError(name, " ".join(str(error).split())) from None
    is_of_memory = policy.resource == "memory"
    return ChosenPolicy(path.stem, {MEMORY: play_memory(policy)} if is_of_memory else {CPU: play_policy(policy)})


@dataclass(frozen=True, slots=True)
class ReplayedPolicyChange:
    """Effect of a policy on some VMs: their resources, and the additional cost.

    ``vms`` of them were replayed, and ``skipped`` have too little recorded need.
    """

    resources: Mapping[ReplayedResource, Replayed] = field(default_factory=dict)
    money: Fraction = NOTHING
    vms: int = 0
    skipped: int = 0

    def __add__(self, other: ReplayedPolicyChange) -> ReplayedPolicyChange:
        resources = {what: self.of(what) + other.of(what) for what in (CPU, MEMORY)}
        counts = self.vms + other.vms, self.skipped + other.skipped
        return ReplayedPolicyChange(resources, self.money + other.money, *counts)

    def of(self, what: ReplayedResource) -> Replayed:
        """The effect on one resource; empty if it was not replayed."""
        return self.resources.get(what, Replayed())


class PolicyChange:
    """Sums the effect of a policy over VMs: first ``add`` each."""

    def __init__(self, chosen: ChosenPolicy) -> None:
        self._chosen = chosen
        self._by_vm: dict[VmRecord, ReplayedPolicyChange] = {}

    def add(self, vm: VmRecord, spans: Sequence[Span], price: Price) -> None:
        """Replays a VM within its bounds; ``price`` is per hour."""
        outcomes = (
            (what, replayed(str(vm.vm), spans, player, (vm.least, vm.most), what))
            for what, player in self._chosen.players.items()
        )
        resources = {what: outcome for what, outcome in outcomes if outcome is not None}
        if not resources:
            self._by_vm[vm] = ReplayedPolicyChange(skipped=1)
            return
        prices = {CPU: price.cpu, MEMORY: price.mem}
        differences = ((done.played - done.recorded) * prices[what] for what, done in resources.items())
        self._by_vm[vm] = ReplayedPolicyChange(resources, sum(differences, NOTHING), vms=1)

    def lines(self, key_of: KeyOf) -> dict[str, ReplayedPolicyChange]:
        """The effect by line of a bill; a VM that moved belongs to the line of its last node."""
        lines: dict[str, ReplayedPolicyChange] = defaultdict(ReplayedPolicyChange)
        for vm, change in self._by_vm.items():
            lines[key_of(vm)] += change
        return dict(lines)

    @property
    def total(self) -> ReplayedPolicyChange:
        """The effect on all VMs."""
        return sum(self._by_vm.values(), ReplayedPolicyChange())

    def figures(self, change: ReplayedPolicyChange | None) -> dict[str, float | None]:
        """The numbers of a line, or of the total; None if not replayed."""
        numbers: dict[str, float | None] = {}
        played = change if change is not None and change.vms else None
        for what in (CPU, MEMORY):
            part = played.of(what) if played is not None and what in self._chosen.players else None
            for name in ("played", "recorded", "needed", "missed"):
                numbers[f"{name}_{what.key}_hours"] = None if part is None else rounded(getattr(part, name))
        numbers["cost_change"] = None if played is None else rounded(played.money)
        return numbers

    def sentences(self) -> Iterator[str]:
        """Describes the cost or savings, and the skipped VMs."""
        all_vms, covered = self.total, self._chosen.players
        hours = " and ".join(
            f"{float(all_vms.of(what).played):.2f} {what.unit} instead of {float(all_vms.of(what).recorded):.2f}"
            for what in covered
        )
        missed = " and ".join(f"{all_vms.of(what).missed_percent:.2f} % of the needed {what.name}" for what in covered)
        change = "cost" if all_vms.money >= 0 else "saved"
        yield (
            f"Policy {self._chosen.label}: {hours}. It would have {change} {abs(float(all_vms.money)):.4f}, and missed "
            f"{missed}."
        )
        for what in (CPU, MEMORY):
            if what not in covered:
                yield f"The policy does not cover {what.name}, which stays as it was."
        if all_vms.skipped:
            yield f"{all_vms.skipped} VMs have too little recorded need to be replayed."
