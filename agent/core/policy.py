"""Scaling policies with their defaults, and the agent's backoffs (S0.7).

Rules that hold here:

- Every threshold that an operator may want to change is here; other constants are next to their algorithm.
- A policy is plain data: ``agent.config`` decodes and validates it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Final

import msgspec

from protocol.backoff import Backoff
from protocol.smoothing.default import DEFAULT_CPU, DEFAULT_MEMORY
from protocol.smoothing.policy import SmoothingPolicy as Stages
from protocol.units import Bytes, Instant, Seconds

Share = Annotated[float, msgspec.Meta(gt=0, le=1)]
Fraction = Annotated[float, msgspec.Meta(ge=0, lt=1)]
Target = Annotated[float, msgspec.Meta(ge=0.01, le=1)]
"""A target utilization. A need is divided by it, so a tiny one would exceed every float."""

MIN_QUIET: Final = Seconds(60.0)
"""Minimum idle time before sleep, and between two orders to sleep: guests report every 15 s."""

Step = Annotated[float, msgspec.Meta(gt=0, lt=1)]


class PolicySection(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """One section of a policy document."""


class CpuPolicy(PolicySection, frozen=True):
    """Settings that turn CPU demand into a need.

    ``target`` is the share of the CPU that should be busy (0.01..1). Stalls up to the share ``pressure_deadband`` of an
    interval do not count; longer ones count from the busy share ``pressure_from`` on, and fully from ``pressure_full``
    on. One decision adds at most ``reach`` times the current CPU to the busy cores.
    """

    target: Target = 0.85
    pressure_deadband: Fraction = 0.1
    pressure_from: Fraction = 0.3
    pressure_full: Share = 0.7
    reach: Annotated[float, msgspec.Meta(ge=1, le=100)] = 3.0


class CachePolicy(PolicySection, frozen=True):
    """Settings that decide how much page cache counts as needed memory (B.16), if ``enabled``.

    Memory is short if tasks stall for the share ``stall`` of the time (0..1], or if the guest rereads the share
    ``turnover`` (0..1] of the memory in question within a ``watch``; half of that stall is enough to blame a shrink.
    A shrink takes at most ``step`` (0..1) of the cache, ``idle_step`` from an idle guest, and is watched for ``watch``
    seconds before the next. A shrink that hurt is reverted and not retried for ``retry`` seconds, doubled each time up
    to ``longest``, unless the guest has been idle for ``idle_after`` seconds. Results are remembered for ``remember``
    seconds. The VM grows for the cache in steps of ``growth`` of its memory, as long as a step ends at least the share
    ``gain`` (0..1] of its proportional part of the rereads. Fewer rereads than ``trickle`` bytes per second are normal.
    A guest is idle if its programs use less than ``idle_share`` (0..1) of the CPU that they used when the working set
    was learned.
    """

    enabled: bool = True
    stall: Share = 0.1
    turnover: Share = 0.25
    step: Step = 0.1
    idle_step: Step = 0.33
    watch: Seconds = Seconds(180.0)
    retry: Seconds = Seconds(3600.0)
    longest: Seconds = Seconds(8 * 3600.0)
    idle_after: Seconds = Seconds(900.0)
    remember: Seconds = Seconds(24 * 3600.0)
    growth: Annotated[float, msgspec.Meta(ge=0.05, le=4)] = 0.5
    gain: Share = 0.5
    trickle: Bytes = Bytes(256 * 1024)
    idle_share: Fraction = 0.1

    @property
    def recent(self) -> Seconds:
        """Window of the recent cost."""
        return Seconds(self.watch / 3)


class MemoryPolicy(PolicySection, frozen=True):
    """Settings that turn memory in use into a need.

    ``target`` is the share of the memory that should be used (0.01..1). ``kernel_allowance`` is memory that the guest
    does not report. If tasks stall on memory for at least the share ``pressure_threshold`` of the time, the VM grows by
    at least ``pressure_step`` of its size, and likewise for each sample with OOM kills; it keeps that for ``kill_hold``
    seconds after the last kill (0: ignore kills).
    """

    target: Target = 0.75
    kernel_allowance: Bytes = Bytes(100 * 1024**2)
    pressure_threshold: Share = 0.1
    pressure_step: Annotated[float, msgspec.Meta(ge=0, le=10)] = 0.25
    kill_hold: Seconds = Seconds(900.0)
    cache: CachePolicy = CachePolicy()


class MonitorPolicy(PolicySection, frozen=True):
    """Lifetimes of a guest monitor's messages (seconds): ``hold`` of a load report, ``request`` of a memory request.

    ``connection`` is the expected CPU of a new connection, in cores; 0 ignores connections.
    """

    hold: Seconds = Seconds(3.0)
    request: Seconds = Seconds(10.0)
    connection: Annotated[float, msgspec.Meta(ge=0, le=8)] = 0.1


class SleepPolicy(PolicySection, frozen=True):
    """Settings of sleep (B.18): a VM sleeps once its database has been idle for ``after`` seconds (0: never), outside
    of the windows ``keep_awake`` (see ``agent.core.sleep.windows``).
    """

    after: Seconds = Seconds(0.0)
    keep_awake: Annotated[tuple[str, ...], msgspec.Meta(max_length=16)] = ()

    @property
    def early(self) -> Seconds:
        """Idle seconds before early sleep, if the node is short of room."""
        return Seconds(max(MIN_QUIET, self.after / 4))

    @property
    def refused(self) -> Backoff:
        """Delays after orders that the guest refused."""
        return Backoff(self.early, Seconds(self.after * 4), spread=0.0)


class Timing(PolicySection, frozen=True):
    """Intervals and time limits (seconds).

    ``tick``: maximum time between requests to the scheduler, less up to ``tick_jitter``; ``migrating_tick``: the same
    during a migration. ``start_spread``: spread of the first requests after a start. ``unfinished_shrink``: how long an
    unfinished shrink blocks the next. ``settle``: how long a shrink may keep the guest busy, unless it has been calm
    since; at least ``unfinished_shrink`` if the VM still has more than ordered. ``scrape``: interval of scrapes.
    ``stale``: maximum age of metrics that count as evidence; a need lasts for at least two scrapes.
    """

    tick: Seconds = Seconds(15.0)
    tick_jitter: Seconds = Seconds(2.0)
    migrating_tick: Seconds = Seconds(2.0)
    start_spread: Seconds = Seconds(1.0)
    unfinished_shrink: Seconds = Seconds(5.0)
    settle: Seconds = Seconds(3.0)
    stale: Seconds = Seconds(5.0)
    scrape: Seconds = Seconds(1.0)


@dataclass(frozen=True, slots=True)
class BatchSchedule:
    """The times at which all VMs of an agent send requests that can wait: one at ``phase``, and every ``interval``.

    Thus one message can carry many requests. Each agent has a different phase.
    """

    interval: Seconds
    phase: Instant

    def last_before(self, at: Instant) -> Instant:
        """The last of these times up to ``at``."""
        # Python's modulo is never negative here, so this also works before ``phase``.
        return Instant(at - (at - self.phase) % self.interval)

    @property
    def doubled(self) -> BatchSchedule:
        """A schedule with twice as many times, for requests that are due sooner."""
        return BatchSchedule(Seconds(self.interval / 2), self.phase)


@dataclass(frozen=True, slots=True)
class Smoothing:
    """The smoothing stages of each resource, which decide size and time of a shrink.

    They start over after a gap of more than ``max_gap`` seconds without a known need.
    """

    cpu: Stages = DEFAULT_CPU
    memory: Stages = DEFAULT_MEMORY
    max_gap: Seconds = Seconds(10.0)


@dataclass(frozen=True, slots=True)
class Policy:
    """The scaling policy of one VM. ``ignored`` lists settings of its document that have no effect, and why."""

    cpu: CpuPolicy = field(default_factory=CpuPolicy)
    memory: MemoryPolicy = field(default_factory=MemoryPolicy)
    smoothing: Smoothing = Smoothing()
    timing: Timing = field(default_factory=Timing)
    monitor: MonitorPolicy = field(default_factory=MonitorPolicy)
    sleep: SleepPolicy = field(default_factory=SleepPolicy)
    ignored: tuple[str, ...] = ()


SCHEDULER_BACKOFF: Final = Backoff(Seconds(3.0), Seconds(12.0), factor=1.5)
"""After a failed request. The maximum, spread included, stays below 15 s, the guaranteed interval between requests."""

SUCCESSION_BACKOFF: Final = Backoff(Seconds(0.5), Seconds(3.0), factor=1.5)
"""After a request that reached no scheduler or a standby: another may become leader within seconds."""

MAX_SUCCESSION_FAILURES: Final = 8
"""Maximum failures in a row (about 16 s) that a change of leader can explain."""

DENIED_BACKOFF: Final = Backoff(Seconds(2.0), Seconds(3.0), factor=1.5)
"""After a permit below the request: within seconds, freed room is granted to the first VM that requests it."""

POD_PERMIT_LASTS: Final = Seconds(18.0)
"""Lifetime of a pod's permit. It is not stored, and a new scheduler reserves its room for 30 s: longer than this plus
the timeouts of a request (5 s) and a patch (5 s).
"""

WATCH_LAG: Final = Seconds(0.1)
"""Within this time after an answer, the VM's watch shows the permit that was stored before it."""

MIN_REQUEST_DELAY: Final = Seconds(2.0)
"""Minimum delay of the next request, even if the scheduler asks for it sooner."""

REFUSED_BACKOFF: Final = Backoff(Seconds(5.0), Seconds(60.0))
"""After a shrink that the guest's monitor refused."""

TRIAL_BACKOFF: Final = Backoff(Seconds(5.0), Seconds(900.0))
"""After a failed trial of less memory for a pod, or a shrink refused after a trial: both evict page cache in vain."""

MONITOR_GRACE: Final = Seconds(60.0)
"""A VM keeps its memory for this long after losing its monitor: enough for about seven attempts to reconnect."""

REFUSED_GROWTH_BACKOFF: Final = Backoff(Seconds(5.0), Seconds(300.0))
"""After the API server refused a growth: the webhook or quota that forbids it rarely changes."""

LONGEST_PATCH: Final = Seconds(600.0)
"""An unanswered patch cannot take effect later than this: API servers end a request after a minute by default."""

DEFERRED_BACKOFF: Final = Backoff(Seconds(5.0), Seconds(40.0))
"""After a deferred resize was withdrawn because it blocked the other resource."""

VM_API_BACKOFF: Final = Backoff(Seconds(5.0), Seconds(40.0))
"""After a failed patch."""
