"""The cost of a lack of memory over an interval: pages read again, and tasks that waited (B.16).

Pages that the kernel had to bring back (refaults) are the witness. A guest that does not count them is judged by all
that it read from disk; one that counts neither, by the pressure on memory alone.
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
"""Programs that use less CPU than this do no work to speak of: measuring alone takes some."""

_LEAST_WORK: Final = 0.01
"""Cores added to the work of programs, so that next to no work does not excuse any amount of rereading."""


class Cost(msgspec.Struct, frozen=True, gc=False):
    """The cost of ``seconds``: ``reread`` bytes of the ``read`` ones, ``stalled`` seconds of the ``waited`` ones.

    ``stalled`` are blamed on rereading or on memory, ``waited`` on any reading or on memory. Programs did ``work`` in
    core-seconds.
    """

    seconds: float = 0.0
    reread: float = 0.0
    read: float = 0.0
    stalled: float = 0.0
    waited: float = 0.0
    work: float = 0.0

    def __add__(self, other: Cost) -> Cost:
        return Cost(*map(add, astuple(self), astuple(other)))

    def times(self, factor: float) -> Cost:
        """This cost scaled by ``factor`` (>= 0)."""
        return Cost(*[part * factor for part in astuple(self)])

    @property
    def reread_rate(self) -> float:
        """Bytes read again in a second."""
        return self.reread / self.seconds if self.seconds else 0.0

    @property
    def read_rate(self) -> float:
        """Bytes read in a second, for the first time or again."""
        return self.read / self.seconds if self.seconds else 0.0

    @property
    def stall(self) -> float:
        """The share of the time in which tasks waited because memory was short (0..1)."""
        return self.stalled / self.seconds if self.seconds else 0.0

    @property
    def cores(self) -> float:
        """The CPUs that programs kept busy."""
        return self.work / self.seconds if self.seconds else 0.0

    @property
    def effort(self) -> float:
        """The work to which the cost is put in proportion; above zero where any time has passed."""
        return self.work + _LEAST_WORK * self.seconds

    def for_effort_of(self, other: Cost) -> Cost:
        """The cost of the effort of ``other`` at this rate."""
        # Costs are compared for the same work of programs: clients that wait for a busy disk read no faster when they
        # miss more, they only get less done.
        return self.times(other.effort / self.effort if self.effort else 0.0)

    def loss(self, like: Cost) -> float:
        """The cost of a unit of work: bytes read if ``like`` has rereading, seconds waited otherwise."""
        # All reading counts: what is read for the first time becomes rereading over time, at the same memory.
        lost = self.read if like.reread else self.waited
        return lost / self.effort if self.effort else 0.0


NO_COST: Final = Cost()
"""Nothing was seen."""


def cost(over: Rates, trickle: Bytes) -> Cost | None:
    """The cost of the interval ``over``; None if the guest has none of the metrics for it.

    Rereading of fewer bytes a second than ``trickle`` counts as none.
    """
    if not over.span or (over.mem_stall is None and over.refaulted is None and over.read is None):
        return None
    # What is refaulted was read, even if the guest has no counter of reads.
    read = max(over.read or 0.0, over.refaulted or 0.0)
    reread = over.refaulted if over.refaulted is not None else read
    # Waiting for a disk counts as far as the traffic was rereading: commits wait for disks too, and memory does not
    # help them.
    traffic = max(1.0, read + (over.written or 0.0))
    for_memory, for_disks = over.mem_stall or 0.0, over.io_stall or 0.0
    # A trickle of rereading is normal and costs nothing.
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
    return share.times(over.span)


def recent(before: Cost, now: Cost, span: Seconds) -> Cost:
    """``before``, faded exponentially over ``span`` (> 0) seconds, plus ``now``."""
    return before.times(exp(-now.seconds / span)) + now


def _programs(over: Rates) -> float:
    # Kernel time may be the rereading itself.
    return max(0.0, (over.busy or 0.0) - (over.steal or 0.0) - (over.kernel or 0.0))


STEADY: Final = 0.9
"""A loss that has fallen below this share of what it was a while ago is coming to its end."""

FILLING: Final = 0.25
"""If less than this share of what is read goes into unused memory, the guest does not fill it."""


@dataclass(slots=True)
class Trend:
    """``is_falling``: the rereading ends by itself. ``is_filling``: unused memory is being filled."""

    is_falling: bool = False
    is_filling: bool = True
    _at: Instant = Instant(0.0)
    _loss: float = 0.0
    _free: Bytes = Bytes(0)
    _read: float = 0.0

    def sees(self, loss: float, free: Bytes, now: Instant, policy: CachePolicy) -> None:
        """Compare ``loss`` and the unused memory with those of ``policy.recent`` seconds ago, once in that time."""
        # Once in a window: the change from one scrape to the next is no trend.
        if now - self._at < policy.recent:
            return
        filled = self._free.minus_or_zero(free).value
        self.is_falling, self.is_filling = loss < STEADY * self._loss, filled > FILLING * self._read
        self._at, self._loss, self._free, self._read = now, loss, free, 0.0

    def reads(self, count: float) -> None:
        """Add ``count`` bytes read from disk."""
        self._read += count
