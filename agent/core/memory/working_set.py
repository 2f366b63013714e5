"""The working set: memory that the VM needs beyond what its programs use, as learned by trials (B.16).

Rules that hold here:

- What was learned is true for a while: it bars a trial until a time, and is forgotten after another.
- A guest that does no work any more needs no cache: then a floor bars nothing, but is remembered for when work returns.
"""

from __future__ import annotations

from dataclasses import dataclass

from agent.core.memory.rereading import Cost
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


def next_try(tries: int, now: Instant, policy: CachePolicy) -> Instant:
    """The time of the next try after ``tries`` (>= 1) failures in a row."""
    # Each time that the same is learned again, the next trial waits twice as long.
    return Instant(now + Backoff(policy.retry, policy.longest, spread=0.0).delay(tries, 0.0))


def tries_before(learned: WorkingSetFloor | Fruitless | None, now: Instant, remember: Seconds) -> int:
    """The number of times this was learned before; 0 once it is forgotten."""
    # Forgotten knowledge does not lengthen the pause either.
    return 0 if learned is None or now - learned.at > remember else learned.tries
