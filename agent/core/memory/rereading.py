"""The cost of too little memory over an interval: page cache read again, and stalled tasks (B.16).

Refaults are the evidence. Without them all disk reads count, and without those only memory pressure (PSI).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import exp
from operator import add
from typing import Final

import msgspec
from msgspec.structs import astuple

from agent.core.guest import Rates
from agent.core.policy import CachePolicy
from protocol.units import Bytes, Instant, Seconds

IDLE_CORES: Final = 0.05
"""Below this CPU usage programs count as idle: scraping alone takes some."""

_LEAST_WORK: Final = 0.01
"""Cores added to the work of programs: a baseline of almost no work must not justify any amount of rereads."""


class Cost(msgspec.Struct, frozen=True, gc=False):
    """The cost of an interval of ``seconds``. Of the bytes ``read`` from disk, ``reread`` had been in the page cache.

    ``waited`` is the time in seconds stalled on memory or on any read, ``stalled`` the part on memory or rereads.
    ``work`` is the CPU time of programs in core-seconds.
    """

    seconds: float = 0.0
    reread: float = 0.0
    read: float = 0.0
    stalled: float = 0.0
    waited: float = 0.0
    work: float = 0.0

    def __add__(self, other: Cost) -> Cost:
        return Cost(*map(add, astuple(self), astuple(other)))

    def scaled(self, factor: float) -> Cost:
        """This cost scaled by ``factor`` (>= 0)."""
        return Cost(*[part * factor for part in astuple(self)])

    @property
    def reread_rate(self) -> float:
        """Bytes reread per second."""
        return self.reread / self.seconds if self.seconds else 0.0

    @property
    def read_rate(self) -> float:
        """Bytes read per second, rereads included."""
        return self.read / self.seconds if self.seconds else 0.0

    @property
    def stall(self) -> float:
        """Share of the time stalled for lack of memory (0..1)."""
        return self.stalled / self.seconds if self.seconds else 0.0

    @property
    def cores(self) -> float:
        """Cores that programs kept busy."""
        return self.work / self.seconds if self.seconds else 0.0

    @property
    def effort(self) -> float:
        """The work that costs are divided by; above zero if any time has passed."""
        return self.work + _LEAST_WORK * self.seconds

    def at_effort_of(self, other: Cost) -> Cost:
        """This cost scaled to the effort of ``other``."""
        # Compare costs of the same work: with more misses on a busy disk, clients do not read faster but get less done.
        return self.scaled(other.effort / self.effort if self.effort else 0.0)

    def loss(self, like: Cost) -> float:
        """Cost per unit of work: bytes read if ``like`` has rereads, otherwise seconds waited."""
        # All reads count: with the same memory, first reads turn into rereads over time.
        lost = self.read if like.reread else self.waited
        return lost / self.effort if self.effort else 0.0


NO_COST: Final = Cost()
"""The cost before the first sample."""


def cost(over: Rates, trickle: Bytes) -> Cost | None:
    """The cost of the interval ``over``; None if the guest has none of its metrics.

    Less rereading than ``trickle`` bytes per second counts as none.
    """
    if not over.span or (over.mem_stall is None and over.refaulted is None and over.read is None):
        return None
    # Refaulted pages were read, even if the guest has no counter of reads.
    read = max(over.read or 0.0, over.refaulted or 0.0)
    reread = over.refaulted if over.refaulted is not None else read
    # I/O stalls count in proportion to the share of rereads in the traffic: commits also stall on disks, and memory
    # does not help those.
    traffic = max(1.0, read + (over.written or 0.0))
    for_memory, for_disks = over.mem_stall or 0.0, over.io_stall or 0.0
    # A trickle of rereads is normal.
    counted = reread if reread >= trickle.value else 0.0
    blamed = for_memory + for_disks * counted / traffic
    share = Cost(
        seconds=1.0,
        reread=counted,
        read=read,
        stalled=min(1.0, blamed),
        waited=min(1.0, max(blamed, for_memory + for_disks * read / traffic)),
        work=_programs(over),
    )
    return share.scaled(over.span)


def recent(before: Cost, now: Cost, span: Seconds) -> Cost:
    """``before``, decayed exponentially over ``span`` (> 0) seconds, plus ``now``."""
    return before.scaled(exp(-now.seconds / span)) + now


def _programs(over: Rates) -> float:
    # Kernel time may be the rereading itself.
    return max(0.0, (over.busy or 0.0) - (over.steal or 0.0) - (over.kernel or 0.0))


STEADY: Final = 0.9
"""A loss below this share of the one a window ago is falling."""

FILLING: Final = 0.25
"""If less than this share of the reads goes into unused memory, the guest is not filling it."""


@dataclass(slots=True)
class Trend:
    """The trend over a window. ``is_falling``: rereads are ending. ``is_filling``: reads fill unused memory."""

    is_falling: bool = False
    is_filling: bool = True
    _at: Instant = Instant(0.0)
    _loss: float = 0.0
    _free: Bytes = Bytes(0)
    _read: float = 0.0

    def observe(self, loss: float, free: Bytes, now: Instant, policy: CachePolicy) -> None:
        """Compare ``loss`` and unused memory with the last window, once per ``policy.recent`` seconds."""
        if now - self._at < policy.recent:
            return
        filled = self._free.minus_or_zero(free).value
        self.is_falling, self.is_filling = loss < STEADY * self._loss, filled > FILLING * self._read
        self._at, self._loss, self._free, self._read = now, loss, free, 0.0

    def add_read(self, count: float) -> None:
        """Add ``count`` bytes read from disk."""
        self._read += count
