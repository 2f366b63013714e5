"""The cost of moving a VM, and the cheapest set of VMs that makes enough room (B.14, S4.8). Pure.

Rules:

- The unit is bytes: the memory to copy, a fixed cost of a move, and the load of the VM.
- All else equal, a higher reported metric never makes a VM move sooner. A VM with an unknown load moves last.
- Room beyond the need counts up to ``RoomGoal.useful``: it delays the next move.
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

FIXED_COST: Final = 2.5 * 1024**3
"""Bytes that could be copied while a move is ordered, placed and ended: about 10 s at 256 MiB/s."""

PER_LOADED_VCPU: Final = 1.0 * 1024**3
"""Cost of one vCPU of load, in bytes: the move slows it down."""

REPEAT_FACTOR: Final = 2.0
"""Cost factor for each move of the same VM within the last hour."""

MAX_DOUBLINGS: Final = 16
"""Maximum exponent, so that the cost stays within a float however many ended migrations exist."""

SPARE_SHARE: Final = Fraction(1, 10)
"""Share of the watermark to keep free, so that the next growth needs no move."""

HALF: Final = Fraction(1, 2)

HasTarget = Callable[[Victim], bool]


@dataclass(frozen=True, slots=True)
class RoomGoal:
    """Room that a node must gain (``excess``), and the amount up to which more counts (``useful``)."""

    excess: Resources
    useful: Resources

    @classmethod
    def of(cls, excess: Resources, watermark: Resources, slack: Resources, wanted: Resources = ZERO) -> RoomGoal:
        """The goal of a node that would be ``wanted`` above this watermark if it granted every request.

        ``slack`` is the room below the watermark of the emptiest target. Only resources that are short are useful.
        """
        needed = excess.at_least(wanted)
        left = slack.minus_or_zero(needed)
        spare = Resources(
            # At most half of the emptiest target's slack: more would move the pressure there.
            min(watermark.cpu.scaled(SPARE_SHARE), left.cpu.scaled(HALF)),
            min(watermark.mem.scaled(SPARE_SHARE), left.mem.scaled(HALF)),
        )
        most = needed + spare
        return cls(excess, Resources(most.cpu if excess.cpu else excess.cpu, most.mem if excess.mem else excess.mem))

    def share(self, freed: Resources) -> float:
        """Share of the useful amount that ``freed`` covers, 0 to 1: the lower one of CPU and memory."""
        pairs = ((freed.cpu.value, self.useful.cpu.value), (freed.mem.value, self.useful.mem.value))
        # The scarcer resource decides: memory does not help a node that lacks CPU.
        return min((min(1.0, gained / needed) for gained, needed in pairs if needed), default=1.0)


Selection = Callable[[Sequence[Victim], RoomGoal | None, HasTarget], Iterable[Victim]]
"""Chooses which of the candidate VMs leave, in order: enough for the node's need (None: all).

It checks for a target as late as possible, because that may have to evaluate every node.
"""


def cost_of(victim: Victim) -> float:
    """Cost of its move in bytes; infinite if its load is unknown."""
    # Doubles for each move within the hour.
    return (FIXED_COST + victim.to_copy + PER_LOADED_VCPU * victim.load) * REPEAT_FACTOR ** min(
        victim.recent_moves, MAX_DOUBLINGS
    )


def costs(victim: Victim) -> str:
    """Text of its move's gain and cost."""
    freed = victim.size if victim.claim.sleeps else victim.claim.reserved
    return explanations.costs(freed, Bytes(victim.to_copy), victim.load, victim.recent_moves)


def least_cost(victims: Sequence[Victim], need: RoomGoal | None, has_target: HasTarget) -> Iterable[Victim]:
    """The default selection: the cheapest VMs that make enough room; all that help if that is not enough."""
    if need is None:
        return filter(has_target, sorted(victims, key=lambda victim: (cost_of(victim), victim.to_copy, victim.vm)))
    ranked = sorted(victims, key=lambda victim: (_rate([victim], need), victim.to_copy, victim.vm))
    several = select_enough(ranked, need.excess, has_target)
    alone = next((victim for victim in ranked if need.excess.within(victim.size) and has_target(victim)), None)
    # One VM that is enough alone, or several together, whichever costs less per room gained.
    return several if alone is None or _rate(several, need) < _rate([alone], need) else [alone]


def ordered_by(order: Callable[[Victim, Resources | None], tuple[float, ...]]) -> Selection:
    """Select VMs by ``order``, lowest first and ties by name, until there is enough room."""

    def select(victims: Sequence[Victim], need: RoomGoal | None, has_target: HasTarget) -> Iterable[Victim]:
        excess = None if need is None else need.excess
        ranked = sorted(victims, key=lambda victim: (order(victim, excess), victim.vm))
        return filter(has_target, ranked) if excess is None else select_enough(ranked, excess, has_target)

    return select


def select_enough(victims: Sequence[Victim], excess: Resources, has_target: HasTarget) -> list[Victim]:
    """The first of ``victims`` with a target that cover ``excess`` together; all that help if that is not enough."""
    chosen, left = [], excess
    for victim in victims:
        if not left.any:
            break
        if helps(victim, left) and has_target(victim):
            chosen.append(victim)
            left = left.minus_or_zero(victim.size)
    freed = Resources.sum(victim.size for victim in chosen)
    # A later, larger VM may make earlier ones unnecessary.
    for victim in list(chosen):
        if not left.any and excess.within(freed - victim.size):
            chosen.remove(victim)
            freed = freed - victim.size
    return chosen


def helps(victim: Victim, excess: Resources) -> bool:
    """Return True if the VM has any of the resources in excess."""
    return excess.at_most(victim.size).any


def _rate(victims: Sequence[Victim], need: RoomGoal) -> float:
    """Cost of moving them all per share of the useful amount; infinite if they free nothing."""
    share = need.share(Resources.sum(victim.size for victim in victims))
    return sum(map(cost_of, victims)) / share if share else inf
