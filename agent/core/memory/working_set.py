"""The working set learned from trials: memory that the VM needs beyond what its programs use (B.16)."""

from __future__ import annotations

from dataclasses import dataclass, replace

from agent.core.memory.memory_view import NONE, MemoryView
from agent.core.memory.rereading import Cost
from agent.core.memory.trials import Filled, Growth, Shrink
from agent.core.policy import CachePolicy
from protocol.backoff import Backoff
from protocol.units import Bytes, Instant, Seconds


@dataclass(frozen=True, slots=True)
class WorkingSetFloor:
    """The guest needs ``size``: with only ``too_small``, rereads and stalls cost it ``cost``.

    Learned at ``at``, for the ``tries``-th time; no smaller size is tried before ``retry_at``. ``cores`` is the CPU use
    of programs at that time. ``spare`` is memory that stayed unused although the guest suffered: its kernel reserves
    it.
    """

    size: Bytes
    too_small: Bytes
    at: Instant
    tries: int
    retry_at: Instant
    cost: Cost
    cores: float
    spare: Bytes

    def lowered(self, size: Bytes, now: Instant, policy: CachePolicy) -> WorkingSetFloor:
        """This floor after the smaller ``size`` turned out to be enough."""
        # If the next step would reach the size that once hurt, wait as long as after that harm.
        is_near = part_of(size, 1 - policy.step) <= self.too_small
        return replace(self, size=size, tries=0, retry_at=next_try(1, now, policy) if is_near else self.retry_at)


@dataclass(frozen=True, slots=True)
class FailedGrowth:
    """Growth from ``base`` to ``size`` did not help: the cost dropped by the share ``drop`` (below 0: it rose).

    Learned at ``at``, for the ``tries``-th time in a row; not retried before ``retry_at``.
    """

    base: Bytes
    size: Bytes
    at: Instant
    tries: int
    retry_at: Instant
    drop: float


def floor_after_shrink(  # noqa: PLR0913, PLR0917 - the evidence
    before: WorkingSetFloor | None, shrink: Shrink, recent: Cost, view: MemoryView, now: Instant, policy: CachePolicy
) -> WorkingSetFloor:
    """The floor after ``shrink`` hurt."""
    tries = tries_before(before, now, policy.remember) + 1
    cost = shrink.cost if shrink.cost.seconds else recent
    cores, retry_at = max(shrink.baseline.cores, cost.cores), next_try(tries, now, policy)
    spare = view.free if cost.reread and view.free is not None else NONE
    # Keep a higher floor from before the guest was idle.
    if before is not None and before.size > shrink.before:
        return replace(before, tries=tries, retry_at=retry_at, cores=min(before.cores, cores), spare=spare)
    return WorkingSetFloor(shrink.before, shrink.after, now, tries, retry_at, cost, cores, spare)


def floor_after_growth(  # noqa: PLR0913, PLR0917 - the evidence
    before: WorkingSetFloor | None, growth: Growth, recent: Cost, view: MemoryView, now: Instant, policy: CachePolicy
) -> WorkingSetFloor:
    """The floor after ``growth`` helped: the size before it was too small."""
    needed = before.size if before is not None else NONE
    # A floor at exactly that size was wrong. Otherwise the growth proves only that one more step was needed.
    was_wrong = needed == growth.base
    tries = max(1, tries_before(before, now, policy.remember)) if was_wrong else 1
    return WorkingSetFloor(
        size=view.use if was_wrong else max(needed, min(view.use, growth.base + view.step)),
        too_small=growth.base,
        at=now,
        tries=tries,
        retry_at=next_try(tries, now, policy),
        cost=growth.baseline,
        cores=max(growth.baseline.cores, recent.cores),
        spare=NONE if before is None else before.spare,
    )


def failed_growth_after(before: FailedGrowth | None, trial: Filled, now: Instant, policy: CachePolicy) -> FailedGrowth:
    """The record of a growth that did not help."""
    tries = tries_before(before, now, policy.remember) + 1
    return FailedGrowth(trial.growth.base, trial.size, now, tries, next_try(tries, now, policy), trial.drop)


def next_try(tries: int, now: Instant, policy: CachePolicy) -> Instant:
    """Time of the next trial after ``tries`` (>= 1) failures in a row; the delay doubles each time."""
    return Instant(now + Backoff(policy.retry, policy.longest, spread=0.0).delay(tries, 0.0))


def tries_before(learned: WorkingSetFloor | FailedGrowth | None, now: Instant, remember: Seconds) -> int:
    """Number of times this was learned before; 0 once forgotten, so that the delay starts over."""
    return 0 if learned is None or now - learned.at > remember else learned.tries


def part_of(amount: Bytes, share: float) -> Bytes:
    """``amount`` times ``share`` (>= 0), in floats: exact arithmetic would dominate the cost of an observation."""
    return Bytes(int(amount.value * share))
