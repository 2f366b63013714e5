"""Model of pre-copy migration: each round sends the memory dirtied in the previous one (pure)."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from deploy.neonvm.transfer_terms import TransferInfo, TransferLimits, TransferRam, TransferStatus
from protocol.units import Bytes, Seconds

PAGE: Final = Bytes(4096)
WIRE: Final = Bytes(512 * 1024**2)
"""Maximum bandwidth per second, as of an emulated guest."""

_DIRTIED_PER_CORE: Final = 48 * 1024**2
"""Bytes per second that a busy core of a database dirties."""

_SETUP: Final = Seconds(0.04)
_SWITCH: Final = Seconds(0.02)
"""Time to stop the source and start the target, without any memory to send."""

_FIRST_BRAKE, _BRAKE, _STRONGEST_BRAKE = 0.2, 0.1, 0.99


@dataclass(frozen=True, slots=True)
class MemoryLoad:
    """Memory of a guest: the total, the part in use, and the number of cores that dirty it."""

    total: Bytes
    used: Bytes
    busy_cores: float


@dataclass(frozen=True, slots=True)
class _Round:
    """Sends ``size`` bytes from ``since`` on; ``sent`` bytes were sent before."""

    since: Seconds
    size: float
    sent: float


@dataclass(frozen=True, slots=True)
class Course:
    """The whole migration, computed in advance. ``end`` is None if it times out."""

    memory_load: MemoryLoad
    rate: float
    rounds: tuple[_Round, ...]
    end: Seconds | None
    downtime: Seconds

    @classmethod
    def of(cls, memory_load: MemoryLoad, limits: TransferLimits) -> Course:
        """The migration of ``memory_load`` under ``limits``."""
        rate = float(min(WIRE, limits.bandwidth).value)
        rounds = tuple(_rounds(memory_load, rate, limits))
        last = rounds[-1]
        rest = last.size / rate
        end = last.since + rest + _SWITCH
        # A guest that dirties memory faster than it can be sent converges only if it is throttled.
        converges = len(rounds) > 1 and rest <= limits.downtime_after(last.since) and end <= limits.timeout
        return cls(memory_load, rate, rounds, Seconds(end) if converges else None, Seconds(rest + _SWITCH))

    def at(self, elapsed: Seconds) -> TransferInfo:
        """Progress after ``elapsed`` seconds (>= 0)."""
        number = max(0, bisect_right(self.rounds, elapsed, key=lambda step: step.since) - 1)
        current = self.rounds[number]
        sent = min(current.size, max(0.0, elapsed - current.since) * self.rate)
        status = TransferStatus.SETUP if elapsed < _SETUP else TransferStatus.ACTIVE
        return TransferInfo(
            status=status if self.end is None or elapsed < self.end else TransferStatus.COMPLETED,
            total=elapsed if self.end is None else min(elapsed, self.end),
            setup=_SETUP,
            downtime=self.downtime,
            ram=self._ram(current.sent + sent, current.size - sent, number + 1),
        )

    def _ram(self, sent: float, remaining: float, rounds: int) -> TransferRam:
        span = self.rounds[rounds - 1].size / self.rate
        return TransferRam(
            total=self.memory_load.total.value,
            transferred=int(sent),
            remaining=int(remaining),
            duplicate=(self.memory_load.total - self.memory_load.used).value // PAGE.value,
            normal=int(sent) // PAGE.value,
            dirty_pages_rate=int(_dirtied(self.memory_load, span) / span / PAGE.value) if span else 0,
            dirty_sync_count=rounds,
            page_size=PAGE.value,
        )


def _rounds(memory_load: MemoryLoad, rate: float, limits: TransferLimits) -> Iterator[_Round]:
    """Rounds up to the one that fits into the downtime limit, or to the timeout."""
    # The first round sends all memory in use; zero pages are only counted.
    current = _Round(_SETUP, float(memory_load.used.value), 0.0)
    number = 0
    while True:
        yield current
        number += 1
        span = current.size / rate
        since = Seconds(current.since + span)
        # Once the rest fits into the downtime limit, the guest is paused until it has been sent.
        if (number > 1 and span <= limits.downtime_after(current.since)) or since >= limits.timeout:
            return
        changed = _dirtied(memory_load, span) * (1 - (_brake(number) if limits.auto_converge else 0.0))
        current = _Round(since, changed, current.sent + current.size)


def _dirtied(memory_load: MemoryLoad, span: float) -> float:
    """Bytes dirtied in ``span`` seconds: at most the memory in use."""
    return min(float(memory_load.used.value), memory_load.busy_cores * _DIRTIED_PER_CORE * span)


def _brake(rounds: int) -> float:
    # Like QEMU's auto-converge: throttle by 20 % after the second round, and 10 % more every second round.
    return 0.0 if rounds < 2 else min(_STRONGEST_BRAKE, _FIRST_BRAKE + _BRAKE * ((rounds - 2) // 2))
