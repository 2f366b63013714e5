"""The cost of moving a VM, and the VMs that make enough room for the least of it (B.14, S4.8). Pure.

Rules that hold here:

- A cost counts in bytes: what has to be copied, as much again for setting a move up, and more for a VM that is busy.
- More of a reported metric never makes a VM go sooner, all else equal. A VM whose load is not known goes last.
- Room beyond what is needed is worth something, up to ``Freedom.welcome``: it delays the next move.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import inf
from typing import Final

from protocol.units import ZERO, Bytes, Resources
from scheduler_plugin.planner.victims import Victim
from scheduler_plugin.texts import explanations

SET_UP: Final = 2.5 * 1024**3
"""Bytes that could be copied while a move is ordered, placed and ended: about ten seconds at 256 MiB a second."""

PER_LOADED_VCPU: Final = 1.0 * 1024**3
"""Bytes that weigh as much as one vCPU of load, which notices the move."""

AGAIN: Final = 2.0
"""How much more a move costs for each move of the same VM within the hour before."""

MOST_DOUBLINGS: Final = 16
"""Of a cost: nothing else is as dear. A float must hold it, however many ended migrations a person has left behind."""

SPARE: Final = Fraction(1, 10)
"""The share of a node's watermark that is welcome below it, so that the next growth needs no move."""

HALF: Final = Fraction(1, 2)

HasPlace = Callable[[Victim], bool]


@dataclass(frozen=True, slots=True)
class Freedom:
    """The room that a node must gain (``excess``), and up to which amount more of it is ``welcome``."""

    excess: Resources
    welcome: Resources

    @classmethod
    def of(cls, excess: Resources, watermark: Resources, slack: Resources, wished: Resources = ZERO) -> Freedom:
        """The room that a node with this watermark lacks, if all that is ``wished`` above it were granted.

        ``slack`` is the room below its watermark that the emptiest target has. Nothing is welcome of a resource that is
        not short.
        """
        much = excess.at_least(wished)
        left = slack.minus_or_zero(much)
        spare = Resources(
            # At most half of what the emptiest target has left: more would only move the pressure there.
            min(watermark.cpu.scaled(SPARE), left.cpu.scaled(HALF)),
            min(watermark.mem.scaled(SPARE), left.mem.scaled(HALF)),
        )
        most = much + spare
        return cls(excess, Resources(most.cpu if excess.cpu else excess.cpu, most.mem if excess.mem else excess.mem))

    def share(self, freed: Resources) -> float:
        """Share of the welcome amount that is gained, 0 to 1: that of the resource with the least."""
        pairs = ((freed.cpu.value, self.welcome.cpu.value), (freed.mem.value, self.welcome.mem.value))
        # The scarcer resource decides: a VM with much memory does not relieve a node that lacks CPU.
        return min((min(1.0, gained / much) for gained, much in pairs if much), default=1.0)


Selection = Callable[[Sequence[Victim], Freedom | None, HasPlace], Iterable[Victim]]
"""Chooses the VMs that go, in order, of those that may: enough for the node's need (None: all must go).

It asks for a VM's place as late as it can, because the answer may need a look at every node.
"""


def cost_of(victim: Victim) -> float:
    """Cost of its move, in bytes; infinite if its load is unknown."""
    # A VM that has moved within the hour costs double, after two such moves four times as much, and so on.
    return (SET_UP + victim.to_copy + PER_LOADED_VCPU * victim.load) * AGAIN ** min(victim.moved, MOST_DOUBLINGS)


def costs(victim: Victim) -> str:
    """Gain and cost of its move, for people."""
    freed = victim.size if victim.claim.sleeps else victim.claim.reserved
    return explanations.costs(freed, Bytes(victim.to_copy), victim.load, victim.moved)


def least_cost(victims: Sequence[Victim], need: Freedom | None, has_place: HasPlace) -> Iterable[Victim]:
    """The rule: the VMs that make enough room for the least cost; if not enough can go, all that help."""
    if need is None:
        return filter(has_place, sorted(victims, key=lambda victim: (cost_of(victim), victim.to_copy, victim.vm)))
    ranked = sorted(victims, key=lambda victim: (_rate([victim], need), victim.to_copy, victim.vm))
    several = enough(ranked, need.excess, has_place)
    alone = next((victim for victim in ranked if need.excess.within(victim.size) and has_place(victim)), None)
    # Either one VM that is enough by itself or several that are enough together, whichever costs less for what it
    # frees.
    return several if alone is None or _rate(several, need) < _rate([alone], need) else [alone]


def in_order(order: Callable[[Victim, Resources | None], tuple[float, ...]]) -> Selection:
    """VMs one after the other, the least first, until there is enough room; of equals the name decides."""

    def select(victims: Sequence[Victim], need: Freedom | None, has_place: HasPlace) -> Iterable[Victim]:
        excess = None if need is None else need.excess
        ranked = sorted(victims, key=lambda victim: (order(victim, excess), victim.vm))
        return filter(has_place, ranked) if excess is None else enough(ranked, excess, has_place)

    return select


def enough(victims: Sequence[Victim], excess: Resources, has_place: HasPlace) -> list[Victim]:
    """The first of ``victims`` with a place that relieve ``excess`` together; all that help if they are not enough."""
    chosen, left = [], excess
    for victim in victims:
        if not left.any:
            break
        if helps(victim, left) and has_place(victim):
            chosen.append(victim)
            left = left.minus_or_zero(victim.size)
    relieved = Resources.sum(victim.size for victim in chosen)
    # A later, larger VM may make an earlier one needless.
    for victim in list(chosen):
        if not left.any and excess.within(relieved - victim.size):
            chosen.remove(victim)
            relieved = relieved - victim.size
    return chosen


def helps(victim: Victim, excess: Resources) -> bool:
    """Return True if the VM has anything of what the node has too much of."""
    return excess.at_most(victim.size).any


def _rate(victims: Sequence[Victim], need: Freedom) -> float:
    """Cost of moving them all for each share of what is welcome; infinite if they free none of it."""
    share = need.share(Resources.sum(victim.size for victim in victims))
    return sum(map(cost_of, victims)) / share if share else inf
