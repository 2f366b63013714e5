"""The states of probing, and the verdict on each trial: does a shrink hurt, does a growth help (B.16)?

A trial is judged by what it changed: the cost of the same work, compared with the cost before.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
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


class Observation(Enum):
    """Observations of a VM and its guest that may lead from one state to another."""

    GREW = auto()  # the VM has more memory than before, whoever ordered it
    FELL = auto()  # it has less
    WAITED = auto()  # a claim was granted, or the time for it or for a return is over
    EXPIRED = auto()  # the last shrink is too long ago to be blamed for what programs need
    CROWDED = auto()  # programs need more than the last shrink has left
    HURTS = auto()  # the last shrink costs too much
    HARMLESS = auto()  # it was watched for long enough
    SHORT = auto()  # the cache is full, and the guest suffers
    RELIEVED = auto()  # the guest suffers no more, without a growth
    HELPS = auto()  # a growth was worth its memory
    USELESS = auto()  # it was not
    TOO_SMALL = auto()  # it was too small to tell


@dataclass(frozen=True, slots=True)
class Shrink:
    """The VM went from ``before`` to ``after`` at ``at``; ``baseline`` is what it cost before, ``cost`` since.

    ``is_expired``: the needs of programs count against it no more.
    """

    before: Bytes
    after: Bytes
    at: Instant
    baseline: Cost
    cost: Cost = NO_COST
    is_expired: bool = False

    def verdict(self, policy: CachePolicy) -> Observation | None:
        """Harm as soon as it has used up a budget; harmless after a whole watch without that."""
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
            return Observation.HURTS
        return Observation.HARMLESS if cost.seconds >= policy.watch else None

    def is_to_blame(self, recent: Cost) -> bool:
        """Return True if the same work clearly costs more than before the shrink."""
        return recent.loss(recent) > CLEARLY * self.baseline.loss(recent)


@dataclass(frozen=True, slots=True)
class Resting:
    """No trial. ``shrunk`` is the last shrink, while it may still turn out to have been wrong."""

    shrunk: Shrink | None = None


@dataclass(frozen=True, slots=True)
class Growth:
    """The VM should have ``wanted`` instead of ``base``, where it cost ``baseline``."""

    base: Bytes
    wanted: Bytes
    baseline: Cost


@dataclass(frozen=True, slots=True)
class Growing:
    """The VM has not got the growth yet; ``shrunk`` as in ``Resting``."""

    growth: Growth
    shrunk: Shrink | None = None

    def verdict(self, recent: Cost, policy: CachePolicy) -> Observation | None:
        """Relieved once the rereading has ended without the growth."""
        return None if suffers(recent, self.growth.base, policy, 0.5) else Observation.RELIEVED


@dataclass(frozen=True, slots=True)
class Filling:
    """The VM got ``size`` for the growth, and has filled it for ``seconds``."""

    growth: Growth
    size: Bytes
    seconds: float = 0.0

    def spend(self, cost: Cost, free: Bytes, policy: CachePolicy) -> Filling | Filled:
        """This trial after one more interval, with ``free`` bytes unused at its end."""
        seconds = self.seconds + cost.seconds
        # Two watches at most: a kernel that keeps memory free never fills it.
        is_filled = free.ratio(self.size) < FULL or seconds >= 2 * policy.watch
        return Filled(self.growth, self.size) if is_filled else replace(self, seconds=seconds)

    def verdict(self, recent: Cost, policy: CachePolicy) -> Observation | None:
        """The growth helps if the rereading has ended with it."""
        return Observation.HELPS if is_over(recent, self.size, policy) else None


@dataclass(frozen=True, slots=True)
class Filled:
    """The VM's new memory, ``size``, is full; ``cost`` is the cost since."""

    growth: Growth
    size: Bytes
    cost: Cost = NO_COST

    def verdict(self, recent: Cost, free: Bytes, most: Bytes, policy: CachePolicy) -> Observation | None:
        """The growth helps if the rereading has ended, or has fallen enough."""
        if is_over(recent, self.size, policy):
            return Observation.HELPS
        if self.cost.seconds < policy.recent:
            return None
        part = self._part_of(most, free)
        # If all the memory that the VM may have would end the rereading, this growth should end its ``part`` of it.
        # It pays if it brings the share ``gain`` of that. A scan of more data than fits gains nothing.
        if self.fell >= max(LEAST_GAIN, policy.gain * part):
            return Observation.HELPS
        # Too small a growth proves nothing: another step follows before it is judged.
        return Observation.TOO_SMALL if part < ENOUGH_TO_JUDGE and self.size < most else Observation.USELESS

    @property
    def fell(self) -> float:
        """The share by which the cost of the same work fell; negative if it rose."""
        baseline = self.growth.baseline
        before = baseline.loss(baseline)
        return 1.0 - self.cost.loss(baseline) / before if before else 0.0

    def _part_of(self, most: Bytes, free: Bytes) -> float:
        """The share (0..1) of the way to the VM's maximum that the cache has grown."""
        # Memory that is still unused holds no cache.
        grown = self.size.minus_or_zero(self.growth.base).minus_or_zero(free)
        return grown.value / max(1, most.minus_or_zero(self.growth.base).value)


@dataclass(frozen=True, slots=True)
class Reclaiming:
    """A shrink has hurt at ``since``: the VM asks ``size`` back."""

    size: Bytes
    since: Instant


@dataclass(frozen=True, slots=True)
class Returning:
    """A growth was useless: the VM goes back to ``base``, unless it cannot before ``until``."""

    base: Bytes
    until: Instant


RESTING: Final = Resting()
"""The state of an agent that has just started."""

Phase = Resting | Shrink | Growing | Filling | Filled | Reclaiming | Returning


def is_over(recent: Cost, memory: Bytes, policy: CachePolicy) -> bool:
    """Return True if the rereading with ``memory`` has ended, and enough time was seen to tell."""
    return recent.seconds >= policy.watch / 6 and not suffers(recent, memory, policy, 0.5)


def suffers(recent: Cost, memory: Bytes, policy: CachePolicy, share: float = 1.0) -> bool:
    """Return True if rereading or waiting exceeds ``share`` of the policy's limits, so that more memory may help."""
    if recent.seconds < min(_LEAST_SECONDS, policy.watch / 6):
        return False
    span = policy.recent
    # ``turnover`` is for a whole watch; ``recent`` covers a third of it.
    reread = max(policy.trickle.value * span, policy.turnover * memory.value / 3)
    return recent.stalled >= share * policy.stall * span or recent.reread >= share * reread


def _exceeds(spent: float, expected: float, budget: float) -> bool:
    return spent - expected > budget and spent > CLEARLY * expected
