"""Model of pre-copy migration: each round sends the memory dirtied in the previous one (pure)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from deploy.neonvm.transfer_terms import TransferInfo, TransferLimits, TransferRam, TransferStatus
from protocol.units import Bytes, Seconds

PAGE: Final = Bytes(4096)
MAX_BANDWIDTH: Final = Bytes(512 * 1024**2)
"""Maximum bandwidth per second, as of an emulated guest."""

_DIRTIED_PER_CORE: Final = 48 * 1024**2
"""Bytes per second that a busy core of a database dirties."""

_SETUP: Final = Seconds(0.04)
_SWITCHOVER: Final = Seconds(0.02)
"""Time to stop the source and start the target, without any memory to send."""

_FIRST_THROTTLE, _THROTTLE_STEP, _MAX_THROTTLE = 0.2, 0.1, 0.99


@dataclass(frozen=True, slots=True)
class MemoryLoad:
    """Memory of a guest: the total, the part in use, and the number of cores that dirty it."""

    total: Bytes
    used: Bytes
    busy_cores: float


@dataclass(frozen=True, slots=True)
class TransferModel:
    """The whole migration, computed in advance: ``size`` bytes in ``rounds``. ``end`` is None if it times out."""

    memory_load: MemoryLoad
    rate: float
    size: float
    rounds: int
    end: Seconds | None
    downtime: Seconds

    @classmethod
    def of(cls, memory_load: MemoryLoad, limits: TransferLimits) -> TransferModel:
        """The migration of ``memory_load`` under ``limits``."""
        rate = float(min(MAX_BANDWIDTH, limits.bandwidth).value)
        # The first round sends all memory in use; zero pages are only counted.
        rounds, since, sent, rest = 1, _SETUP, 0.0, float(memory_load.used.value)
        # Once the rest fits into the downtime limit, the guest is paused until it has been sent.
        while (rounds == 1 or rest / rate > limits.downtime_after(since)) and since + rest / rate < limits.timeout:
            span = rest / rate
            since, sent = Seconds(since + span), sent + rest
            rest = _dirtied(memory_load, span) * (1 - (_throttle(rounds) if limits.auto_converge else 0.0))
            rounds += 1
        end = since + rest / rate + _SWITCHOVER
        # A guest that dirties memory faster than it can be sent converges only if it is throttled.
        converges = rounds > 1 and rest / rate <= limits.downtime_after(since) and end <= limits.timeout
        downtime = Seconds(rest / rate + _SWITCHOVER)
        return cls(memory_load, rate, sent + rest, rounds, Seconds(end) if converges else None, downtime)

    def at(self, elapsed: Seconds) -> TransferInfo:
        """Progress after ``elapsed`` seconds (>= 0)."""
        has_ended = self.end is not None and elapsed >= self.end
        status = TransferStatus.SETUP if elapsed < _SETUP else TransferStatus.ACTIVE
        sent = min(self.size, max(0.0, elapsed - _SETUP) * self.rate)
        ram = TransferRam(
            total=self.memory_load.total.value,
            transferred=int(sent),
            remaining=min(self.memory_load.used.value, int(self.size - sent)),
            duplicate=(self.memory_load.total - self.memory_load.used).value // PAGE.value,
            normal=int(sent) // PAGE.value,
            dirty_pages_rate=int(_dirtied(self.memory_load, 1.0)) // PAGE.value,
            dirty_sync_count=self.rounds if has_ended else 1,
            page_size=PAGE.value,
        )
        return TransferInfo(
            status=TransferStatus.COMPLETED if has_ended else status,
            total=elapsed if self.end is None else min(elapsed, self.end),
            setup=_SETUP,
            downtime=self.downtime,
            ram=ram,
        )


def _dirtied(memory_load: MemoryLoad, span: float) -> float:
    """Bytes dirtied in ``span`` seconds: at most the memory in use."""
    return min(float(memory_load.used.value), memory_load.busy_cores * _DIRTIED_PER_CORE * span)


def _throttle(rounds: int) -> float:
    # Like QEMU's auto-converge: throttle by 20 % after the second round, and 10 % more every second round.
    return 0.0 if rounds < 2 else min(_MAX_THROTTLE, _FIRST_THROTTLE + _THROTTLE_STEP * ((rounds - 2) // 2))
