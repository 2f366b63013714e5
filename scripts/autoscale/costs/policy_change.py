"""What a policy would have changed for a fleet, summed over its VMs, in sentences."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction

from scheduler_plugin.history.core.samples import VmFacts
from scheduler_plugin.history.core.spans import Span
from scheduler_plugin.history.costs.prices import Price
from scripts.autoscale.costs.policy_choice import ChosenPolicy
from scripts.autoscale.costs.policy_replay import CPU, MEMORY, Replayed, Resource, replayed
from scripts.autoscale.replay.peers import Player


class PolicyChange:
    """Sums over VMs; ``add`` each, then read ``sentences``."""

    def __init__(self, chosen: ChosenPolicy) -> None:
        self._chosen = chosen
        self._cpu, self._memory = Replayed(), Replayed()
        self._money = Fraction(0)
        self._skipped = 0

    def add(self, vm: VmFacts, spans: Sequence[Span], price: Price) -> None:
        """Plays one VM within its bounds; its hours cost ``price``."""
        cpu, memory = (
            _played(vm, spans, player, what)
            for player, what in ((self._chosen.cpu, CPU), (self._chosen.memory, MEMORY))
        )
        if cpu is None and memory is None:
            self._skipped += 1
            return
        for found, of_one in ((cpu, price.cpu), (memory, price.mem)):
            self._money += (found.played - found.recorded) * of_one if found is not None else 0
        self._cpu += cpu or Replayed()
        self._memory += memory or Replayed()

    def sentences(self) -> Iterator[str]:
        """What it would have cost or saved, and what was left out."""
        parts = [
            (unit, name, total)
            for unit, name, total, player in (
                ("vCPU-h", "CPU", self._cpu, self._chosen.cpu),
                ("GiB-h", "memory", self._memory, self._chosen.memory),
            )
            if player is not None
        ]
        hours = " and ".join(
            f"{float(each.played):.2f} {unit} instead of {float(each.recorded):.2f}" for unit, _, each in parts
        )
        missed = " and ".join(f"{each.missed_percent:.2f} % of the {name}" for _, name, each in parts)
        change = "cost" if self._money >= 0 else "saved"
        yield (
            f"Policy {self._chosen.label}: {hours}: it would have {change} {abs(float(self._money)):.4f}, and missed "
            f"{missed} that was needed."
        )
        for name, player in (("CPU", self._chosen.cpu), ("memory", self._chosen.memory)):
            if player is None:
                yield f"The policy says nothing of {name}, which stays what it was."
        if self._skipped:
            yield f"{self._skipped} VMs have too little recorded need to be played."


def _played(vm: VmFacts, spans: Sequence[Span], player: Player | None, what: Resource) -> Replayed | None:
    return None if player is None else replayed(str(vm.vm), spans, player, (vm.least, vm.most), what)
