"""Trials with a VM's memory, and the verdict on them: did a shrink hurt, does a growth pay (B.16)?

Rules that hold here:

- A trial is judged by what it changed: the cost of the same work, compared with the cost before.
- A shrink hurts as soon as its cost has used up a budget; it is harmless when a whole watch has passed without that.
- A growth is judged once the new memory is filled.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

from agent.core.memory.rereading import NO_COST, Cost
from agent.core.policy import CachePolicy
from protocol.units import Bytes, Instant

ENOUGH_TO_JUDGE: Final = 0.2
"""A growth by this share of the way to all that the VM may have is judged; a smaller one may go on."""

LEAST_GAIN: Final = 0.05
"""A fall of the rereading by less than this may be chance."""

CLEARLY: Final = 1.2
"""A cost above this multiple of the one before is no chance."""

FULL: Final = 0.15
"""The cache is full when less than this share of the memory is unused."""

_LEAST_SECONDS: Final = 10.0
"""A shorter interval proves nothing."""


class TrialVerdict(Enum):
    """The verdict on a trial."""

    OPEN = auto()
    GOOD = auto()
    BAD = auto()
    GO_ON = auto()


@dataclass(slots=True)
class Shrink:
    """The VM went from ``before`` to ``after`` at ``at``; ``baseline`` is what it cost before, ``cost`` since."""

    before: Bytes
    after: Bytes
    at: Instant
    baseline: Cost
    cost: Cost = NO_COST

    def verdict(self, policy: CachePolicy) -> TrialVerdict:
        """Bad as soon as it hurts; good after a whole watch."""
        cost, expected = self.cost, self.baseline.for_effort_of(self.cost)
        taken = float(self.before.value - self.after.value)
        reading = max(policy.turnover * taken, policy.trickle.value * policy.watch)
        # Half of the waiting that makes a VM grow is enough to blame a shrink.
        waiting = policy.stall * policy.watch / 2
        # All reading must have risen as well: what was read for the first time becomes rereading over time, at the
        # same memory.
        rereads = _exceeds(cost.reread, expected.reread, reading) and _exceeds(cost.read, expected.read, reading)
        stalls = _exceeds(cost.stalled, expected.stalled, waiting) and _exceeds(cost.waited, expected.waited, waiting)
        if rereads or stalls:
            return TrialVerdict.BAD
        return TrialVerdict.GOOD if cost.seconds >= policy.watch else TrialVerdict.OPEN

    def is_to_blame(self, recent: Cost) -> bool:
        """Return True if the same work clearly costs more than before the shrink."""
        return recent.loss(recent) > CLEARLY * self.baseline.loss(recent)


@dataclass(slots=True)
class Growth:
    """The VM should have ``wanted`` instead of ``base``, where it cost ``baseline``.

    ``size`` is what it got, None as long as it got nothing; ``fills`` is how long it has been filling, in seconds;
    ``cost`` is the cost since it was full.
    """

    base: Bytes
    wanted: Bytes
    baseline: Cost
    size: Bytes | None = None
    fills: float = 0.0
    is_filled: bool = False
    cost: Cost = NO_COST

    def got(self, size: Bytes) -> Growth:
        """This trial after the VM was resized to ``size``."""
        return Growth(self.base, self.wanted, self.baseline, size)

    def sees(self, cost: Cost, free: Bytes, policy: CachePolicy) -> None:
        """Add an interval with ``free`` bytes unused at its end."""
        if self.size is None:
            return
        if self.is_filled:
            self.cost += cost
            return
        self.fills += cost.seconds
        # Two watches at most: a kernel that keeps memory free never fills it.
        self.is_filled = free.ratio(self.size) < FULL or self.fills >= 2 * policy.watch

    def verdict(self, recent: Cost, free: Bytes, most: Bytes, policy: CachePolicy) -> TrialVerdict:
        """Good if it helps or the rereading has ended; bad if it does not help."""
        if self.size is None:
            return TrialVerdict.OPEN if suffers(recent, self.base, policy, 0.5) else TrialVerdict.BAD
        # The rereading has ended, with the new memory: that is what it was for.
        if recent.seconds >= policy.watch / 6 and not suffers(recent, self.size, policy, 0.5):
            return TrialVerdict.GOOD
        if self.cost.seconds < policy.recent:
            return TrialVerdict.OPEN
        part = self.part_of(most, free)
        # If all the memory that the VM may have would end the rereading, this growth should end its ``part`` of it.
        # It pays if it brings the share ``gain`` of that. A scan of more data than fits gains nothing.
        if self.fell >= max(LEAST_GAIN, policy.gain * part):
            return TrialVerdict.GOOD
        # Too small a growth proves nothing: another step follows before it is judged.
        return TrialVerdict.GO_ON if part < ENOUGH_TO_JUDGE and self.size < most else TrialVerdict.BAD

    @property
    def fell(self) -> float:
        """The share by which the cost of the same work fell; negative if it rose."""
        before, now = self.baseline.loss(self.baseline), self.cost.loss(self.baseline)
        return 1.0 - now / before if before else 0.0

    def part_of(self, most: Bytes, free: Bytes) -> float:
        """The share (0..1) of the way to the VM's maximum that the cache has grown."""
        # Memory that is still unused holds no cache.
        grown = (self.size or self.base).minus_or_zero(self.base).minus_or_zero(free)
        return grown.value / max(1, most.minus_or_zero(self.base).value)


def suffers(recent: Cost, memory: Bytes, policy: CachePolicy, share: float = 1.0) -> bool:
    """Return True if rereading or waiting exceeds ``share`` of the policy's limits, so that more memory may help."""
    if recent.seconds < min(_LEAST_SECONDS, policy.watch / 6):
        return False
    span = policy.recent
    # ``turnover`` is for a whole watch; ``recent`` covers a third of it.
    reread = max(policy.trickle.value * span, policy.turnover * memory.value / 3)
    return recent.stalled >= share * policy.stall * span or recent.reread >= share * reread


def _exceeds(found: float, expected: float, budget: float) -> bool:
    return found - expected > budget and found > CLEARLY * expected
