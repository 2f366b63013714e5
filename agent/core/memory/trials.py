"""The states of probing, and the verdict on each trial: does a shrink hurt, does a growth help (B.16)?

The verdict compares the cost of the same work before and after the trial.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import Final

from agent.core.memory.rereading import NO_COST, Cost
from agent.core.policy import CachePolicy
from protocol.units import Bytes, Instant

ENOUGH_TO_JUDGE: Final = 0.2
"""A growth gets a verdict if it covers this share of the distance to the VM's maximum; a smaller one may continue."""

LEAST_GAIN: Final = 0.05
"""A smaller relative drop may be noise."""

CLEARLY: Final = 1.2
"""A cost above this multiple of the baseline is not noise."""

FULL: Final = 0.15
"""The cache is full if less than this share of the memory is unused."""

_LEAST_SECONDS: Final = 10.0
"""A shorter interval is not evidence."""


class Observation(Enum):
    """Events that move probing from one state to another."""

    GREW = auto()  # the VM has more memory than before, no matter who ordered it
    FELL = auto()  # the VM has less memory than before
    WAITED = auto()  # a claim was granted, or the deadline of a claim or return passed
    EXPIRED = auto()  # the last shrink is too old to be blamed for what programs need
    CROWDED = auto()  # programs need more than the last shrink left
    HURTS = auto()  # the last shrink costs too much
    HARMLESS = auto()  # the watch after a shrink ended without harm
    SHORT = auto()  # the cache is full, and rereads or stalls exceed the limits
    RELIEVED = auto()  # the guest recovered without a growth
    HELPS = auto()  # the growth was worth its memory
    USELESS = auto()  # the growth was not worth its memory
    TOO_SMALL = auto()  # the growth was too small for a verdict


@dataclass(frozen=True, slots=True)
class Shrink:
    """A shrink from ``before`` to ``after`` at ``at``; ``baseline`` is the cost before it, ``cost`` the cost since.

    ``is_expired``: the needs of programs are no longer blamed on it.
    """

    before: Bytes
    after: Bytes
    at: Instant
    baseline: Cost
    cost: Cost = NO_COST
    is_expired: bool = False

    def observation(self, policy: CachePolicy) -> Observation | None:
        """``HURTS`` once a budget is exceeded, ``HARMLESS`` after a whole watch without that, otherwise None."""
        cost, expected = self.cost, self.baseline.at_effort_of(self.cost)
        taken = float(self.before.value - self.after.value)
        reading = max(policy.turnover * taken, policy.trickle.value * policy.watch)
        # Half of the stall that causes a growth is enough to blame a shrink.
        waiting = policy.stall * policy.watch / 2
        # All reads must have risen as well: with the same memory, first reads turn into rereads over time.
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
    """No trial. ``shrunk`` is the last shrink while it can still turn out to hurt."""

    shrunk: Shrink | None = None


@dataclass(frozen=True, slots=True)
class Growth:
    """A growth from ``base``, with the cost ``baseline``, to ``wanted``."""

    base: Bytes
    wanted: Bytes
    baseline: Cost


@dataclass(frozen=True, slots=True)
class Growing:
    """Waiting for the growth to be granted; ``shrunk`` as in ``Resting``."""

    growth: Growth
    shrunk: Shrink | None = None

    def observation(self, recent: Cost, policy: CachePolicy) -> Observation | None:
        """``RELIEVED`` if the rereads ended without the growth."""
        return None if exceeds_limits(recent, self.growth.base, policy, 0.5) else Observation.RELIEVED


@dataclass(frozen=True, slots=True)
class Filling:
    """The VM has grown to ``size``, and its cache has been filling for ``seconds``."""

    growth: Growth
    size: Bytes
    seconds: float = 0.0

    def after_interval(self, cost: Cost, free: Bytes, policy: CachePolicy) -> Filling | Filled:
        """This trial after another interval, with ``free`` bytes unused at its end."""
        seconds = self.seconds + cost.seconds
        # At most two watches: a kernel that keeps memory free never fills it.
        is_filled = free.ratio(self.size) < FULL or seconds >= 2 * policy.watch
        return Filled(self.growth, self.size) if is_filled else replace(self, seconds=seconds)

    def observation(self, recent: Cost, policy: CachePolicy) -> Observation | None:
        """``HELPS`` if the rereads have ended."""
        return Observation.HELPS if have_rereads_ended(recent, self.size, policy) else None


@dataclass(frozen=True, slots=True)
class Filled:
    """The cache has filled the new ``size``; ``cost`` is the cost since."""

    growth: Growth
    size: Bytes
    cost: Cost = NO_COST

    def observation(self, recent: Cost, free: Bytes, maximum: Bytes, policy: CachePolicy) -> Observation | None:
        """``HELPS`` if the rereads have ended or dropped enough."""
        if have_rereads_ended(recent, self.size, policy):
            return Observation.HELPS
        if self.cost.seconds < policy.recent:
            return None
        part = self._part_of(maximum, free)
        # If the VM's maximum would end the rereads, this growth should end its ``part`` of them, and pays off if it
        # ends the share ``gain`` of that. A scan of more data than fits gains nothing.
        if self.drop >= max(LEAST_GAIN, policy.gain * part):
            return Observation.HELPS
        # A growth too small for a verdict takes another step first.
        return Observation.TOO_SMALL if part < ENOUGH_TO_JUDGE and self.size < maximum else Observation.USELESS

    @property
    def drop(self) -> float:
        """Relative drop of the cost of the same work; negative if it rose."""
        baseline = self.growth.baseline
        before = baseline.loss(baseline)
        return 1.0 - self.cost.loss(baseline) / before if before else 0.0

    def _part_of(self, maximum: Bytes, free: Bytes) -> float:
        """Share (0..1) of the distance to the VM's maximum that the cache has covered."""
        # Unused memory holds no cache yet.
        grown = self.size.minus_or_zero(self.growth.base).minus_or_zero(free)
        return grown.value / max(1, maximum.minus_or_zero(self.growth.base).value)


@dataclass(frozen=True, slots=True)
class Reclaiming:
    """A shrink hurt at ``since``: the VM claims ``size`` back."""

    size: Bytes
    since: Instant


@dataclass(frozen=True, slots=True)
class Returning:
    """A growth was useless: the VM returns to ``base``, or gives that up at ``until``."""

    base: Bytes
    until: Instant


RESTING: Final = Resting()
"""The state of an agent that has just started."""

Phase = Resting | Shrink | Growing | Filling | Filled | Reclaiming | Returning


def have_rereads_ended(recent: Cost, memory: Bytes, policy: CachePolicy) -> bool:
    """Return True if ``memory`` was observed for long enough to conclude that the rereads have ended."""
    return recent.seconds >= policy.watch / 6 and not exceeds_limits(recent, memory, policy, 0.5)


def exceeds_limits(recent: Cost, memory: Bytes, policy: CachePolicy, share: float = 1.0) -> bool:
    """Return True if rereads or stalls exceed the ``share`` of the policy's limits: more memory may help."""
    if recent.seconds < min(_LEAST_SECONDS, policy.watch / 6):
        return False
    span = policy.recent
    # ``turnover`` applies to a whole watch, of which ``recent`` covers a third.
    reread = max(policy.trickle.value * span, policy.turnover * memory.value / 3)
    return recent.stalled >= share * policy.stall * span or recent.reread >= share * reread


def _exceeds(spent: float, expected: float, budget: float) -> bool:
    return spent - expected > budget and spent > CLEARLY * expected
