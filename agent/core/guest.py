"""Samples of a guest's metrics, and the rates between two of them (S4.3).

Rules that hold here:

- A counter yields a rate if both samples contain it and it did not fall. A missing rate is None, never zero.
- Steal counts as demand, because the guest wanted to run. Iowait does not, because more CPU would not help.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import msgspec

from protocol.units import Bytes, Instant, Seconds

SHORTEST: Final = Seconds(0.2)
"""Minimum interval of a rate; rates over shorter ones are noise."""

LONGEST: Final = Seconds(30.0)
"""Maximum interval of a rate; rates over longer ones are outdated, unless scrapes are that far apart."""

CLOCK_TOLERANCE: Final = Seconds(1.0)
"""Tolerated drift between the guest's clock and ours over an interval; beyond it, the guest's clock was set."""

BOOT_TOLERANCE: Final = Seconds(5.0)
"""Clock adjustments move the reported boot time by at most this; beyond it, the guest rebooted."""


COUNTER_JITTER: Final = 0.01
"""A CPU counter that falls by fewer seconds than this (the kernel's tick) counts as unchanged."""

FASTEST: Final = 1e12
"""Maximum plausible rate in bytes per second."""


@dataclass(frozen=True, slots=True)
class CpuSeconds:
    """CPU time of one CPU since it came online, in seconds. ``kernel`` is the kernel's part of ``busy``.

    ``cpus`` is the number of CPUs that the counter covers; above 1 for a cgroup.
    """

    busy: float
    steal: float = 0.0
    iowait: float = 0.0
    kernel: float = 0.0
    cpus: int = 1


class GuestSample(msgspec.Struct, frozen=True, gc=False):
    """The metrics of one scrape that decisions need. ``stall`` fields are PSI *some* totals in seconds.

    ``refaulted``, ``read`` and ``written`` are bytes since boot: page cache refaults, and disk traffic. ``oom_kills``
    counts OOM kills since boot. ``stamp`` is the exporter's sampling time (seconds, by the guest's clock), if reported.
    ``counted`` is total CPU time, idle included, if the exporter samples on its own clock; it changes only with a new
    sample. ``quiet`` is the time since the last client activity of the database (seconds), ``awake`` the guest's
    reasons against sleep.
    """

    cpus: Mapping[str, CpuSeconds] = {}
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
    quiet: float | None = None
    awake: tuple[str, ...] = ()

    def repeats(self, before: GuestSample) -> bool:
        """Return True if the exporter returned the sample ``before`` again."""
        if self.stamp is not None and before.stamp is not None:
            return self.stamp == before.stamp
        # Without stamps, compare total CPU time: it includes idle time, so it changes with every new sample.
        return self.counted is not None and self.counted == before.counted

    @property
    def mem_used(self) -> Bytes | None:
        """Memory that cannot be reclaimed without swapping; None if the guest does not report it."""
        if self.mem_total is None or self.mem_available is None:
            return None
        return self.mem_total.minus_or_zero(self.mem_available)

    @property
    def missing(self) -> frozenset[str]:
        """The resources whose need cannot be known from this sample.

        >>> sorted(GuestSample().missing), sorted(GuestSample(cpus={"0": CpuSeconds(1.0)}).missing)
        (['CPU', 'memory'], ['memory'])
        """
        return frozenset(["CPU"] * (not self.cpus) + ["memory"] * (self.mem_used is None))

    @property
    def shows_rereading(self) -> bool:
        """Return True if the sample has the metrics that show a lack of page cache."""
        return self.mem_free is not None and (self.refaulted is not None or self.read is not None)


@dataclass(frozen=True, slots=True)
class ObservedSample:
    """A sample, first seen at ``at`` and last repeated at ``again``."""

    sample: GuestSample
    at: Instant
    again: Instant | None = None

    @property
    def last(self) -> Instant:
        """Time of the last scrape that returned this sample."""
        return self.at if self.again is None else self.again


class Rates(msgspec.Struct, frozen=True, gc=False):
    """Rates over the interval of ``span`` seconds between two samples.

    ``busy`` cores include ``steal`` and ``kernel``. Stalls are PSI shares (0..1); ``refaulted``, ``read`` and
    ``written`` are bytes per second. ``unknown`` cores may have been busy or idle. ``lost`` names counters that cannot
    be compared over this interval.
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
        """Return True if the guest may have been busier, or stalled more, than the rates say."""
        return self.unknown > 0 or bool(self.lost)

    @property
    def used(self) -> float | None:
        """Busy cores; None if some are unknown."""
        return None if self.unknown else self.busy


NO_RATES: Final = Rates()
"""The rates of an unknown interval."""


@dataclass(frozen=True, slots=True)
class CpuCount:
    """CPU seconds used by the guest, steal included, over ``observed`` seconds. Neither ever falls.

    The difference between two counts gives an exact mean over any time, while a rate covers one scrape interval.
    """

    used: float = 0.0
    observed: float = 0.0

    def plus(self, interval: Rates) -> CpuCount:
        """Add an interval; ignored without a CPU rate."""
        if interval.used is None:
            return self
        return CpuCount(self.used + interval.used * interval.span, self.observed + interval.span)


NO_COUNT: Final = CpuCount()
"""The initial count."""


def rates(before: ObservedSample | None, now: ObservedSample, cpus: int = 0, longest: Seconds = LONGEST) -> Rates:
    """The rates between two samples at most ``longest`` seconds apart; all None if they cannot be compared.

    ``cpus`` is the minimum number of CPUs of the guest; those missing from ``now`` count as unknown.
    """
    # Counters restart from zero at boot.
    if before is None or is_other_boot(before.sample, now.sample):
        return NO_RATES
    span, was, sample = _span(before, now), before.sample, now.sample
    if not SHORTEST <= span <= longest:
        return NO_RATES
    cores, counted = _cores(was.cpus, sample.cpus, span)
    per_second = {name: _rate(getattr(was, name), getattr(sample, name), span, most) for name, most in _MOST.items()}
    return Rates(
        **(cores if counted else {}),
        **per_second,
        # CPUs that just came online, are missing from the sample, or whose counter fell may have been busy or idle.
        unknown=max(0.0, max(cpus, sum(cpu.cpus for cpu in sample.cpus.values())) - counted) if counted else 0.0,
        lost=frozenset(
            name
            for name, rate in per_second.items()
            if rate is None and (getattr(was, name), getattr(sample, name)) != (None, None)
        ),
        span=span,
    )


def _span(before: ObservedSample, now: ObservedSample) -> float:
    """Seconds between two samples, by the guest's clock if both have a stamp and the clock was not set."""
    ours, was, is_now = now.at - before.at, before.sample.stamp, now.sample.stamp
    if was is None or is_now is None:
        return ours
    # An exporter that samples on its own clock (vector) may have done so long before the scrape. Its counters cover the
    # time between its samples, not between our scrapes.
    guest_elapsed = is_now - was
    return guest_elapsed if abs(guest_elapsed - ours) <= now.at - before.last + CLOCK_TOLERANCE else ours


def is_other_boot(before: GuestSample, now: GuestSample) -> bool:
    """Return True if both samples have a boot time, and the guest booted between them."""
    if before.boot_time is None or now.boot_time is None:
        return False
    return abs(now.boot_time - before.boot_time) > BOOT_TOLERANCE


def _cores(
    before: Mapping[str, CpuSeconds], now: Mapping[str, CpuSeconds], span: float
) -> tuple[dict[str, float], float]:
    """Mean cores by state, over the CPUs in both samples, and the number of cores whose state is known."""
    busy = steal = iowait = kernel = comparable = 0.0
    for cpu, a in now.items():
        b = before.get(cpu)
        # A CPU that just came online has no baseline.
        if b is None:
            continue
        in_kernel, stolen = a.kernel - b.kernel, a.steal - b.steal
        # ``busy`` includes kernel time but not steal.
        parts = (a.busy - b.busy - in_kernel, in_kernel, stolen)
        # A CPU cannot be busy for longer than the span.
        most = span * a.cpus
        occupied = min(sum(max(0.0, part) for part in parts), most)
        busy += occupied
        comparable += most if min(parts) > -COUNTER_JITTER else occupied
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
"""The counters of a sample other than CPU time, and the maximum rate of each."""


def _rate(before: float | None, after: float | None, span: float, most: float) -> float | None:
    # A counter that fell was reset, so its rate is unknown.
    if before is None or after is None or after < before:
        return None
    # The guest is not trusted: it may report a share above 1, or an absurd rate.
    return min(most, (after - before) / span)
