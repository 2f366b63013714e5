"""Samples of a guest's metrics, and the rates between two of them (S4.3).

Rules that hold here:

- Each counter counts by itself, if both samples have it and it did not fall. Missing is None, never zero.
- Steal counts as demand: the guest wanted to run. Waiting for a disk does not: more CPU would not help.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from protocol.units import Bytes, Instant, Seconds

SHORTEST: Final = Seconds(0.2)
"""Rates over less than this are noise."""

LONGEST: Final = Seconds(30.0)
"""Rates over more than this say nothing about now."""

CLOCK_TOLERANCE: Final = Seconds(1.0)
"""The guest's clock may differ from ours by this much more than the time between two looks; beyond that, it was set."""

BOOT_TOLERANCE: Final = Seconds(5.0)
"""The boot time moves by this much when the guest's clock is set; more is another boot."""


FALL: Final = 0.01
"""Seconds: a counter of CPU time that falls by less only jitters within the kernel's tick, and counts as unchanged."""

FASTEST: Final = 1e12
"""Bytes a second: no guest moves more than this, whatever it reports."""


@dataclass(frozen=True, slots=True)
class CpuSeconds:
    """CPU time of one CPU since it came online, in seconds. ``kernel`` is the part of ``busy`` outside programs.

    ``cpus`` is above 1 if one counter covers that many CPUs, as a control group's does.
    """

    busy: float
    steal: float = 0.0
    iowait: float = 0.0
    kernel: float = 0.0
    cpus: int = 1


@dataclass(frozen=True, slots=True)
class GuestSample:
    """One page of node_exporter, reduced to what decisions need. ``stall`` fields are PSI *some* totals in seconds.

    ``refaulted``, ``read`` and ``written`` are bytes since boot: brought back into memory after they had been evicted,
    and moved from and to disks. ``oom_kills`` counts the processes that its kernel has killed since boot.
    ``stamp`` is when the guest's exporter sampled (seconds, by the guest's clock), if it says so. ``counted`` is all
    CPU time, idle too, if the exporter samples on its own clock: it stands still between two samples.
    """

    cpus: Mapping[str, CpuSeconds] = field(default_factory=dict)
    boot_time: float | None = None
    runnable: float | None = None
    load1: float | None = None
    load5: float | None = None
    mem_total: Bytes | None = None
    mem_available: Bytes | None = None
    cpu_stall: float | None = None
    mem_stall: float | None = None
    io_stall: float | None = None
    mem_free: Bytes | None = None
    refaulted: float | None = None
    read: float | None = None
    written: float | None = None
    oom_kills: float | None = None
    stamp: float | None = None
    counted: float | None = None

    def repeats(self, before: GuestSample) -> bool:
        """Return True if the exporter shows the sample ``before`` again."""
        if self.stamp is not None and before.stamp is not None:
            return self.stamp == before.stamp
        # Without stamps: idle time is counted too, so the sum stands still only if the exporter did not sample.
        return self.counted is not None and self.counted == before.counted

    @property
    def mem_used(self) -> Bytes | None:
        """Memory that cannot be given back without swapping; None if the guest does not report it."""
        if self.mem_total is None or self.mem_available is None:
            return None
        return self.mem_total.minus_or_zero(self.mem_available)

    @property
    def shows_rereading(self) -> bool:
        """Return True if the page shows a lack of page cache: unused memory, and what is read again."""
        return self.mem_free is not None and (self.refaulted is not None or self.read is not None)


@dataclass(frozen=True, slots=True)
class ObservedSample:
    """A sample and when it was first seen; ``again`` is when the exporter last showed the same."""

    sample: GuestSample
    at: Instant
    again: Instant | None = None

    @property
    def last(self) -> Instant:
        """The time when the exporter last showed this sample."""
        return self.at if self.again is None else self.again


@dataclass(frozen=True, slots=True)
class Rates:
    """The interval of ``span`` seconds between two samples: cores busy (with steal), of these stolen and in the kernel;
    cores that waited for disks; PSI shares in 0..1; bytes a second that were refaulted, read and written.

    ``unknown`` are cores that may have been busy or idle beyond ``busy``. ``lost`` names the counters that the guest
    has but that cannot be compared over this interval.
    """

    busy: float | None = None
    steal: float | None = None
    iowait: float | None = None
    kernel: float | None = None
    cpu_stall: float | None = None
    mem_stall: float | None = None
    io_stall: float | None = None
    refaulted: float | None = None
    read: float | None = None
    written: float | None = None
    span: float = 0.0
    unknown: float = 0.0
    lost: frozenset[str] = frozenset()

    @property
    def is_partial(self) -> bool:
        """Return True if the guest may have been busier, or have waited more, than the rates say."""
        return self.unknown > 0 or bool(self.lost)

    @property
    def used(self) -> float | None:
        """The cores busy; None if only a part of them is known."""
        return None if self.unknown else self.busy


NO_RATES: Final = Rates()
"""Nothing is known of an interval."""


@dataclass(frozen=True, slots=True)
class CpuCount:
    """CPU seconds that the guest was seen to use, stolen ones included, within ``seen`` seconds; both only rise.

    The difference of two counts gives an exact mean, however seldom they are read; rates cover a moment only.
    """

    used: float = 0.0
    seen: float = 0.0

    def plus(self, interval: Rates) -> CpuCount:
        """Add an interval; one without a CPU rate counts for nothing."""
        if interval.used is None:
            return self
        return CpuCount(self.used + interval.used * interval.span, self.seen + interval.span)


NO_COUNT: Final = CpuCount()
"""The count of an agent that has just started."""


def rates(before: ObservedSample | None, now: ObservedSample, cpus: int = 0) -> Rates:
    """The rates between two samples; all None if they cannot be compared.

    ``cpus`` is the least number of CPUs that the guest has; those that ``now`` lacks count as unknown.
    """
    # Counters begin at zero with each boot.
    if before is None or is_other_boot(before.sample, now.sample):
        return NO_RATES
    span, was, sample = _span(before, now), before.sample, now.sample
    if not SHORTEST <= span <= LONGEST:
        return NO_RATES
    cores, known = _cores(was.cpus, sample.cpus, span)
    per_second = {name: _rate(getattr(was, name), getattr(sample, name), span, most) for name, most in _MOST.items()}
    return Rates(
        **(cores if known else {}),
        **per_second,
        # CPUs that just came online, are missing from the page, or whose counter fell may have been busy or idle.
        unknown=max(0.0, max(cpus, sum(cpu.cpus for cpu in sample.cpus.values())) - known) if known else 0.0,
        lost=frozenset(
            name
            for name, rate in per_second.items()
            if rate is None and (getattr(was, name), getattr(sample, name)) != (None, None)
        ),
        span=span,
    )


def _span(before: ObservedSample, now: ObservedSample) -> float:
    """Seconds between two samples: by the guest's clock if both have a stamp, unless that clock was set."""
    ours, was, is_now = now.at - before.at, before.sample.stamp, now.sample.stamp
    if was is None or is_now is None:
        return ours
    # An exporter with its own clock (vector) may have sampled long before the page was read. The counters cover the
    # time between its samples, not between our looks.
    theirs = is_now - was
    return theirs if abs(theirs - ours) <= now.at - before.last + CLOCK_TOLERANCE else ours


def is_other_boot(before: GuestSample, now: GuestSample) -> bool:
    """Return True if the guest was started between the samples, as far as both say when that was."""
    if before.boot_time is None or now.boot_time is None:
        return False
    return abs(now.boot_time - before.boot_time) > BOOT_TOLERANCE


def _cores(
    before: Mapping[str, CpuSeconds], now: Mapping[str, CpuSeconds], span: float
) -> tuple[dict[str, float], float]:
    """Mean numbers of CPUs, over all that both samples have, and how many are known to have been busy or idle."""
    busy = steal = iowait = kernel = comparable = 0.0
    for cpu, a in now.items():
        b = before.get(cpu)
        # A CPU that has just come online has nothing to compare with.
        if b is None:
            continue
        in_kernel, stolen = a.kernel - b.kernel, a.steal - b.steal
        # ``busy`` includes kernel time but not steal.
        parts = (a.busy - b.busy - in_kernel, in_kernel, stolen)
        # A CPU is never occupied for more than the whole span.
        most = span * a.cpus
        occupied = min(sum(max(0.0, part) for part in parts), most)
        busy += occupied
        comparable += most if min(parts) > -FALL else occupied
        steal += min(max(0.0, stolen), most)
        kernel += min(max(0.0, in_kernel), most)
        iowait += min(max(0.0, a.iowait - b.iowait), most)
    cores = {"busy": busy / span, "steal": steal / span, "iowait": iowait / span, "kernel": kernel / span}
    return cores, comparable / span


_MOST: Final[Mapping[str, float]] = {
    "cpu_stall": 1.0,
    "mem_stall": 1.0,
    "io_stall": 1.0,
    "refaulted": FASTEST,
    "read": FASTEST,
    "written": FASTEST,
}
"""The counters of a sample besides those of its CPUs, and the greatest rise of each per second."""


def _rate(before: float | None, after: float | None, span: float, most: float) -> float | None:
    # A counter that falls was reset; its rise is unknown.
    if before is None or after is None or after < before:
        return None
    # A guest is not trusted: it may report a share above 1, or an absurd rate.
    return min(most, (after - before) / span)
