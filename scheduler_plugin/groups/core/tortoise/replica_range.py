"""Between which numbers of replicas an HPA may choose (S3.2, S3.6).

Rules that hold here:

- Each number is learned by slots: a running maximum of the replicas seen times a multiplier, rounded up.
- The least never is above the most, and neither is above the caps.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from fractions import Fraction
from math import ceil, floor

from scheduler_plugin.groups.core.tortoise.configuration import SLOT_DECAY, Configuration
from scheduler_plugin.groups.core.tortoise.slot_memory import SlotMemory
from scheduler_plugin.groups.core.tortoise.slots import SlotLayout
from scheduler_plugin.groups.core.workload import ReplicaBounds


def proposed(replicas: int, configuration: Configuration) -> ReplicaBounds:
    """The bounds that this many replicas (>= 0) alone suggest for their slot.

    A minimum below ``minimum_min_replicas`` becomes that; a maximum below it becomes its counterpart.
    """
    least = configuration.minimum_min_replicas
    low, high = (
        configuration.min_replicas_recommendation_multiplier,
        configuration.max_replicas_recommendation_multiplier,
    )
    minimum, maximum = ceil(replicas * low), ceil(replicas * high)
    # The counterpart keeps the ratio between the two multipliers.
    return ReplicaBounds(max(minimum, least), maximum if maximum >= least else floor(least * high / low))


@dataclass(frozen=True, slots=True)
class ReplicaMemory:
    """The least and the most number of replicas of each slot."""

    least: SlotMemory
    most: SlotMemory

    @classmethod
    def empty(cls, layout: SlotLayout) -> ReplicaMemory:
        """Nothing is known yet."""
        return cls(SlotMemory(layout), SlotMemory(layout))

    def learned(self, replicas: int, configuration: Configuration, now: datetime) -> ReplicaMemory:
        """The memory after this many replicas were seen."""
        proposal = proposed(replicas, configuration)
        return ReplicaMemory(
            self.least.learned(proposal.min, SLOT_DECAY, now), self.most.learned(proposal.max, SLOT_DECAY, now)
        )

    def at(self, now: datetime) -> ReplicaBounds | None:
        """Recommendation of the slot of ``now``; None if nothing is known."""
        least, most = self.least.at(now), self.most.at(now)
        return None if least is None or most is None else ReplicaBounds(least, most)

    def laid_out(self, layout: SlotLayout) -> ReplicaMemory:
        """The same memory in another layout."""
        return ReplicaMemory(self.least.laid_out(layout), self.most.laid_out(layout))


def capped(bounds: ReplicaBounds, configuration: Configuration, max_replicas: int | None) -> ReplicaBounds:
    """``bounds`` within the cluster's caps and the Tortoise's own ``max_replicas``."""
    most = min(bounds.max, configuration.maximum_max_replicas)
    most = most if max_replicas is None else min(most, max_replicas)
    # `most` caps both, so the minimum is never above the maximum.
    return ReplicaBounds(min(bounds.min, configuration.maximum_min_replicas, most), most)


def step_back(current: int, recommended: int, factor: Fraction) -> tuple[int, bool]:
    """The least number of replicas one step after an emergency, and whether that was the last step.

    Each step keeps ``factor`` (0..1) of ``current``, rounded down; the last one arrives at ``recommended``.

    >>> step_back(95, 5, Fraction("0.95")), step_back(5, 5, Fraction("0.95"))
    ((90, False), (5, True))
    """
    reduced = floor(current * factor)
    # The last step lands on the recommendation, never below it.
    return (recommended, True) if recommended > reduced else (reduced, False)
