"""A model of a guest whose database relies on the page cache: resident pages, refaults and disk stalls.

Its memory consists of the kernel's share, the memory of programs, a free reserve, and the page cache.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from agent.core.guest import CpuSeconds, GuestSample
from protocol.units import Bytes

PAGE: Final = 8192
MIB: Final = 1024.0**2
KERNEL_SHARE: Final = 0.02
KERNEL_LEAST: Final = 40 * MIB
RESERVE: Final = 0.02
"""The share of memory that the kernel of a large guest keeps free."""

CPU_PER_PAGE: Final = 100e-6
"""Seconds of CPU per page that a transaction accesses."""

_PROGRAMS: Final = 0.7
"""The share of busy time outside the kernel."""


@dataclass(frozen=True, slots=True)
class ClientLoad:
    """Load of clients: ``clients`` access up to ``rate`` pages per second of a hot set of ``hot`` bytes.

    ``skew`` (0 to below 1) is 0 for uniform access; otherwise the most popular share c of the set gets c^(1-skew) of
    the accesses. ``scan`` is the size in bytes of a table that another client reads repeatedly.
    """

    hot: float = 0.0
    rate: float = 0.0
    clients: int = 8
    skew: float = 0.0
    scan: float = 0.0


IDLE: Final = ClientLoad()
"""No client is active."""


@dataclass(frozen=True, slots=True)
class Disk:
    """Seconds per random page, and bytes per second of a scan."""

    latency: float = 0.001
    bandwidth: float = 200 * MIB


@dataclass(slots=True)
class CacheGuest:
    """A guest of ``size`` bytes, of which programs use ``used``, with its counters since boot."""

    size: float
    used: float
    disk: Disk = field(default_factory=Disk)
    reserve: float = RESERVE
    """The share of memory that the kernel keeps free."""
    resident: float = 0.0
    scanned: float = 0.0
    _known: float = 0.0
    _passed: float = 0.0
    _seconds: float = 0.0
    _busy: float = 0.0
    _refaulted: float = 0.0
    _read: float = 0.0
    _written: float = 0.0
    _io_stall: float = 0.0
    _mem_stall: float = 0.0
    done: float = 0.0
    """Pages that clients have accessed."""

    @property
    def kernel(self) -> float:
        """Memory that the kernel reserves at boot."""
        # Page tables and the like grow with the memory; the rest is fixed.
        return max(KERNEL_LEAST, KERNEL_SHARE * self.size)

    @property
    def room(self) -> float:
        """Memory that the page cache can use."""
        return max(0.0, self.size * (1 - self.reserve) - self.kernel - self.used)

    def needed_size(self, load: ClientLoad) -> float:
        """The smallest size at which the hot set stays resident."""
        hot_and_used = self.used + load.hot
        # The kernel's share is the larger of two amounts, so the result is the larger of two solutions.
        return max(hot_and_used / (1 - self.reserve - KERNEL_SHARE), (hot_and_used + KERNEL_LEAST) / (1 - self.reserve))

    def run(self, load: ClientLoad, seconds: float) -> None:
        """Runs ``load`` for ``seconds``."""
        self._fit()
        self._seconds += seconds
        share = self._accesses(load, seconds)
        # Simultaneous stalls of clients and the scan count once.
        share = 1 - (1 - share) * (1 - self._scans(load, seconds))
        self._io_stall += share * seconds
        self._written += 20e3 * seconds

    def _fit(self) -> None:
        self.resident = min(self.resident, self.room)
        # Hot pages evict the scan's pages, and a shrink evicts the scan first, like the kernel's two LRU lists.
        self.scanned = min(self.scanned, self.room - self.resident)

    def _missing(self, load: ClientLoad) -> float:
        """The share of accesses to pages that are not resident."""
        share = min(1.0, self.resident / load.hot)
        return float(1.0 - share ** (1.0 - load.skew))

    def _accesses(self, load: ClientLoad, seconds: float) -> float:
        """Simulates random accesses; returns the share of time in which a client waited for the disk."""
        if not load.hot or not load.rate:
            return 0.0
        missing = self._missing(load)
        # A closed loop: clients that wait for the disk send no requests.
        rate = min(load.rate, load.clients / (CPU_PER_PAGE + missing * self.disk.latency))
        accesses = rate * seconds
        missed = accesses * missing * PAGE
        absent = max(1.0, load.hot - self.resident)
        # Reading a page that was resident before counts as a refault.
        refaulted_share = min(1.0, max(0.0, min(self._known, load.hot) - self.resident) / absent)
        self.done += accesses
        self._busy += accesses * CPU_PER_PAGE
        self._read += missed
        self._refaulted += missed * refaulted_share
        self._known = min(load.hot, max(self._known, self.resident) + missed * (1 - refaulted_share))
        self.resident = min(self.room, load.hot, self.resident + missed)
        self._fit()
        # The probability that at least one client waits.
        waits = 1 - (1 - min(1.0, rate * missing * self.disk.latency / load.clients)) ** load.clients
        # Only refaults are memory pressure.
        self._mem_stall += 0.3 * waits * refaulted_share * seconds
        return waits

    def _scans(self, load: ClientLoad, seconds: float) -> float:
        if not load.scan:
            self._passed = 0.0
            return 0.0
        room = self.room - self.resident
        # The whole table is cached.
        if self.scanned >= load.scan:
            self._busy += 0.5 * seconds
            return 0.0
        read = self.disk.bandwidth * seconds
        self.scanned = min(room, self.scanned + read)
        self._read += read
        # Unless all pages fit, none is still cached in the next round: from the second round on, all reads refault.
        self._refaulted += read if self._passed >= load.scan else 0.0
        self._passed += read
        self._busy += 0.3 * seconds
        return 0.8

    def sample(self) -> GuestSample:
        """A sample of the guest's metrics."""
        free = self.size * self.reserve + self.room - self.resident - self.scanned
        return GuestSample(
            cpus={"0": CpuSeconds(self._busy, kernel=self._busy * (1 - _PROGRAMS))},
            boot_time=1.0,
            runnable=1,
            load1=0.5,
            load5=0.5,
            mem_total=Bytes(int(self.size - self.kernel)),
            mem_available=Bytes(int(max(0.0, self.size - self.kernel - self.used - self.size * self.reserve))),
            cpu_stall=0.0,
            mem_stall=self._mem_stall,
            io_stall=self._io_stall,
            mem_free=Bytes(int(free)),
            refaulted=self._refaulted,
            read=self._read,
            written=self._written,
        )
