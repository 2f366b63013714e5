"""The working set: memory that the VM needs beyond what its programs use, as learned by trials (B.16)."""

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
    """Memory of ``size`` is needed: with ``hurt`` the guest suffered, which cost ``cost``.

    Learned at ``at``, for the ``tries``-th time; less is not tried before ``retry_at``. ``cores`` is how busy programs
    were then. ``spare`` is what the guest left unused although it suffered: its kernel keeps that free.
    """

    size: Bytes
    hurt: Bytes
    at: Instant
    tries: int
    retry_at: Instant
    cost: Cost
    cores: float
    spare: Bytes

    def lowered(self, size: Bytes, now: Instant, policy: CachePolicy) -> WorkingSetFloor:
        """This floor after ``size``, which is less, has proven to be enough."""
        # A next step that would reach the size that once hurt waits as long as after that.
        is_near = part_of(size, 1 - policy.step) <= self.hurt
        return replace(self, size=size, tries=0, retry_at=next_try(1, now, policy) if is_near else self.retry_at)


@dataclass(frozen=True, slots=True)
class Fruitless:
    """Memory of ``tried`` instead of ``base`` did not help: the cost fell by the share ``fell`` (below 0: it rose).

    Learned at ``at``, for the ``tries``-th time in a row; not tried again before ``retry_at``.
    """

    base: Bytes
    tried: Bytes
    at: Instant
    tries: int
    retry_at: Instant
    fell: float


def floor_of_harm(  # noqa: PLR0913, PLR0917 - the evidence
    before: WorkingSetFloor | None, shrink: Shrink, recent: Cost, view: MemoryView, now: Instant, policy: CachePolicy
) -> WorkingSetFloor:
    """The floor after ``shrink`` has hurt."""
    tries = tries_before(before, now, policy.remember) + 1
    cost = shrink.cost if shrink.cost.seconds else recent
    cores, retry_at = max(shrink.baseline.cores, cost.cores), next_try(tries, now, policy)
    spare = view.free if cost.reread and view.free is not None else NONE
    # A greater floor, from before the guest was idle, stays.
    if before is not None and before.size > shrink.before:
        return replace(before, tries=tries, retry_at=retry_at, cores=min(before.cores, cores), spare=spare)
    return WorkingSetFloor(shrink.before, shrink.after, now, tries, retry_at, cost, cores, spare)


def floor_of_gain(  # noqa: PLR0913, PLR0917 - the evidence
    before: WorkingSetFloor | None, growth: Growth, recent: Cost, view: MemoryView, now: Instant, policy: CachePolicy
) -> WorkingSetFloor:
    """The floor after ``growth`` has helped: the size before it was too little."""
    needed = before.size if before is not None else NONE
    # A floor of just that size was wrong. Otherwise the growth proves only that one step more was needed.
    was_wrong = needed == growth.base
    tries = max(1, tries_before(before, now, policy.remember)) if was_wrong else 1
    return WorkingSetFloor(
        size=view.use if was_wrong else max(needed, min(view.use, growth.base + view.step)),
        hurt=growth.base,
        at=now,
        tries=tries,
        retry_at=next_try(tries, now, policy),
        cost=growth.baseline,
        cores=max(growth.baseline.cores, recent.cores),
        spare=NONE if before is None else before.spare,
    )


def fruitless_of(before: Fruitless | None, trial: Filled, now: Instant, policy: CachePolicy) -> Fruitless:
    """The lesson of a growth that did not help."""
    tries = tries_before(before, now, policy.remember) + 1
    return Fruitless(trial.growth.base, trial.size, now, tries, next_try(tries, now, policy), trial.fell)


def next_try(tries: int, now: Instant, policy: CachePolicy) -> Instant:
    """The time of the next try after ``tries`` (>= 1) failures in a row."""
    # Each time that the same is learned again, the next trial waits twice as long.
    return Instant(now + Backoff(policy.retry, policy.longest, spread=0.0).delay(tries, 0.0))


def tries_before(learned: WorkingSetFloor | Fruitless | None, now: Instant, remember: Seconds) -> int:
    """The number of times this was learned before; 0 once it is forgotten."""
    # Forgotten knowledge does not lengthen the pause either.
    return 0 if learned is None or now - learned.at > remember else learned.tries


def part_of(amount: Bytes, share: float) -> Bytes:
    """``amount`` times ``share`` (>= 0), to the byte or so: exact shares cost more than the rest of a look."""
    return Bytes(int(amount.value * share))
