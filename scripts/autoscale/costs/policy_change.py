"""The effect of a policy on a fleet: which policy is meant, and the change summed over VMs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
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


_NOT_PLAYED: Final = Replayed()


@dataclass(frozen=True, slots=True)
class ReplayedPolicyChange:
    """Effect of a policy on some VMs: their CPU and memory, and how much more that costs. ``vms`` of them
    were played, and ``skipped`` have too little recorded need.
    """

    cpu: Replayed = _NOT_PLAYED
    memory: Replayed = _NOT_PLAYED
    money: Fraction = NOTHING
    vms: int = 0
    skipped: int = 0

    def __add__(self, other: ReplayedPolicyChange) -> ReplayedPolicyChange:
        # Every field is additive.
        return ReplayedPolicyChange(
            *(getattr(self, attribute.name) + getattr(other, attribute.name) for attribute in fields(self))
        )


class PolicyChange:
    """Sums over VMs; ``add`` each, then read the rest."""

    def __init__(self, chosen: ChosenPolicy) -> None:
        self._chosen = chosen
        self._by_vm: dict[VmRecord, ReplayedPolicyChange] = {}

    def add(self, vm: VmRecord, spans: Sequence[Span], price: Price) -> None:
        """Plays one VM within its bounds; its hours cost ``price``."""
        cpu, memory = (
            # CPU and memory are sized independently, each by its own player.
            _played(vm, spans, player, what)
            for player, what in ((self._chosen.cpu, CPU), (self._chosen.memory, MEMORY))
        )
        if cpu is None and memory is None:
            self._by_vm[vm] = ReplayedPolicyChange(skipped=1)
            return
        resource_prices = ((cpu or _NOT_PLAYED, price.cpu), (memory or _NOT_PLAYED, price.mem))
        # Only the difference to what was reserved costs or saves money.
        money = sum(
            (
                (resource_replay.played - resource_replay.recorded) * price_per_hour
                for resource_replay, price_per_hour in resource_prices
            ),
            NOTHING,
        )
        self._by_vm[vm] = ReplayedPolicyChange(resource_prices[0][0], resource_prices[1][0], money, vms=1)

    def lines(self, key_of: KeyOf) -> dict[str, ReplayedPolicyChange]:
        """Lines of a bill under the policy; a VM that moved is on the line where it was last."""
        lines: dict[str, ReplayedPolicyChange] = defaultdict(ReplayedPolicyChange)
        for vm, change in self._by_vm.items():
            lines[key_of(vm)] += change
        return dict(lines)

    @property
    def total(self) -> ReplayedPolicyChange:
        """That of all VMs."""
        return sum(self._by_vm.values(), ReplayedPolicyChange())

    def figures(self, change: ReplayedPolicyChange | None) -> dict[str, float | None]:
        """The numbers of a line, or of the total; None if it was not played."""
        numbers: dict[str, float | None] = {}
        for unit, player, part in (
            ("cpu", self._chosen.cpu, change and change.cpu),
            ("gib", self._chosen.memory, change and change.memory),
        ):
            # None for a resource that the policy leaves alone, and if no VM could be played.
            playable = part if player is not None and change is not None and change.vms else None
            for name in ("played", "recorded", "needed", "missed"):
                numbers[f"{name}_{unit}_hours"] = None if playable is None else rounded(getattr(playable, name))
        numbers["cost_change"] = rounded(change.money) if change is not None and change.vms else None
        return numbers

    def sentences(self) -> Iterator[str]:
        """Cost or savings, and the VMs left out, in sentences."""
        all_vms = self.total
        parts = [
            (unit, name, total)
            for unit, name, total, player in (
                ("vCPU-h", "CPU", all_vms.cpu, self._chosen.cpu),
                ("GiB-h", "memory", all_vms.memory, self._chosen.memory),
            )
            if player is not None
        ]
        hours = " and ".join(
            f"{float(resource.played):.2f} {unit} instead of {float(resource.recorded):.2f}"
            for unit, _, resource in parts
        )
        missed = " and ".join(f"{resource.missed_percent:.2f} % of the {name}" for _, name, resource in parts)
        change = "cost" if all_vms.money >= 0 else "saved"
        yield (
            f"Policy {self._chosen.label}: {hours}: it would have {change} {abs(float(all_vms.money)):.4f}, and missed "
            f"{missed} that was needed."
        )
        for name, player in (("CPU", self._chosen.cpu), ("memory", self._chosen.memory)):
            if player is None:
                yield f"The policy does not cover {name}, which stays as it was."
        if all_vms.skipped:
            yield f"{all_vms.skipped} VMs have too little recorded need to be played."


def _played(vm: VmRecord, spans: Sequence[Span], player: Player | None, what: ReplayedResource) -> Replayed | None:
    return None if player is None else replayed(str(vm.vm), spans, player, (vm.least, vm.most), what)
