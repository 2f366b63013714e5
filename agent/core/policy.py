"""The agent's settings with their defaults, and its backoffs (S0.7).

Rules that hold here:

- Every threshold that an operator may want to change is here; constants of one algorithm stand beside it.
- A policy is data: decoding and refusing one belongs to ``agent.config``.
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
Step = Annotated[float, msgspec.Meta(gt=0, lt=1)]


class PolicySection(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """One section of a policy, as a document may write it."""


class CpuPolicy(PolicySection, frozen=True):
    """Settings that turn CPU demand into a need.

    ``target`` is the share of the CPU that should be busy (0..1]. Stall time up to ``pressure_deadband`` of an interval
    is no evidence; more of it counts from the busy share ``pressure_from`` on, and in full from ``pressure_full`` on.
    One decision reaches at most ``reach`` times the present CPU beyond what is busy.
    """

    target: Share = 0.85
    pressure_deadband: Fraction = 0.1
    pressure_from: Fraction = 0.3
    pressure_full: Share = 0.7
    reach: Annotated[float, msgspec.Meta(ge=1, le=100)] = 3.0


class CachePolicy(PolicySection, frozen=True):
    """Settings by which page cache counts as needed memory (B.16), if ``enabled``.

    Waiting for ``stall`` of the time (0..1], or rereading ``turnover`` (0..1] of the memory in question within a
    ``watch``, is a lack of memory; half of that waiting is enough to blame a shrink. One shrink takes at most ``step``
    (0..1) of the cache, ``idle_step`` of an idle guest, and is watched for ``watch`` seconds before the next. One that
    hurt is taken back and not tried again for ``retry`` seconds, then twice that, up to ``longest``; unless the guest
    has been idle for ``idle_after`` seconds. What was learned is remembered for ``remember`` seconds. Growth for the
    cache comes in steps of ``growth`` of the memory, and goes on if it brings at least the share ``gain`` (0..1] of
    what would be needed to end the rereading with all the memory that the VM may have.
    Rereading of fewer bytes a second than ``trickle`` is normal. A guest is idle whose programs do less than
    ``idle_share`` (0..1) of what they did when something was learned.
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
        """The window of the recent cost."""
        return Seconds(self.watch / 3)


class MemoryPolicy(PolicySection, frozen=True):
    """Settings that turn memory in use into a need.

    ``target`` is the share of the memory that should be used (0..1]. ``kernel_allowance`` is what the VM holds but the
    guest does not report. Tasks that stall on memory for ``pressure_threshold`` of the time or more make the VM grow by
    at least ``pressure_step`` of what it has. So does each look that shows processes killed for lack of memory; the VM
    keeps that for ``kill_hold`` seconds after the last kill. 0 ignores kills.
    """

    target: Share = 0.75
    kernel_allowance: Bytes = Bytes(100 * 1024**2)
    pressure_threshold: Share = 0.1
    pressure_step: Annotated[float, msgspec.Meta(ge=0, le=10)] = 0.25
    kill_hold: Seconds = Seconds(900.0)
    cache: CachePolicy = CachePolicy()


class MonitorPolicy(PolicySection, frozen=True):
    """Lifetimes of a guest monitor's messages (seconds): ``hold`` for a load report, ``request`` for a memory request.

    ``connection`` is the CPU that a new connection is expected to use, in cores; 0 ignores connections.
    """

    hold: Seconds = Seconds(3.0)
    request: Seconds = Seconds(10.0)
    connection: Annotated[float, msgspec.Meta(ge=0, le=8)] = 0.1


class Timing(PolicySection, frozen=True):
    """Intervals and time limits (seconds).

    ``tick``: a request to the scheduler at least this often, less up to ``tick_jitter``. ``migrating_tick``: the same
    while the scheduler wants the VM left alone. ``start_spread``: the first request comes within this long of the
    start. ``unfinished_shrink``: how long an unfinished shrink bars the next. ``settle``: for this long after a shrink
    began or was seen, the guest may be busy with the shrink itself, unless it has been calm since; while the VM still
    has more than was ordered, for ``unfinished_shrink`` if that is longer. ``stale``: metrics older than this prove
    nothing. ``scrape``: from one look at the guest to the next.
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
class Rhythm:
    """The moments at which all VMs of one agent ask what can wait: every ``step`` seconds, one of them at ``phase``.

    So one message can ask for many of them. Agents differ in their phase, as without a rhythm each request does.
    """

    step: Seconds
    phase: Instant

    def before(self, at: Instant) -> Instant:
        """The last of the moments that is not after ``at``."""
        # Python's modulo is never negative here, so this also holds before ``phase``.
        return Instant(at - (at - self.phase) % self.step)

    @property
    def quick(self) -> Rhythm:
        """The moments for VMs that ask sooner: these, and those halfway between them."""
        return Rhythm(Seconds(self.step / 2), self.phase)


@dataclass(frozen=True, slots=True)
class Smoothing:
    """Policies as stages, one for each resource: what size, and when to shrink.

    After a gap of more than ``max_gap`` seconds without a known need they start over.
    """

    cpu: Stages = DEFAULT_CPU
    memory: Stages = DEFAULT_MEMORY
    max_gap: Seconds = Seconds(10.0)


@dataclass(frozen=True, slots=True)
class Policy:
    """The scaling policy of one VM. ``passed_over``: settings of its document that have no effect here, and why."""

    cpu: CpuPolicy = field(default_factory=CpuPolicy)
    memory: MemoryPolicy = field(default_factory=MemoryPolicy)
    smoothing: Smoothing = Smoothing()
    timing: Timing = field(default_factory=Timing)
    monitor: MonitorPolicy = field(default_factory=MonitorPolicy)
    passed_over: tuple[str, ...] = ()


SCHEDULER_BACKOFF: Final = Backoff(Seconds(3.0), Seconds(12.0), factor=1.5)
"""After a failed request; with its spread the cap keeps the promise of a request every 15 s."""

SUCCESSION_BACKOFF: Final = Backoff(Seconds(0.5), Seconds(3.0), factor=1.5)
"""After a request that found no scheduler, or one that stands by: another may lead within seconds."""

MOST_OF_SUCCESSION: Final = 8
"""Failures in a row, some 16 s, after which no succession explains them."""

DENIED_BACKOFF: Final = Backoff(Seconds(2.0), Seconds(3.0), factor=1.5)
"""After a permit below the request: room that comes free is had within seconds, by whoever asks first."""

POD_PERMIT_LASTS: Final = Seconds(18.0)
"""A pod's permit holds this long after its answer. It is stored nowhere, and a new scheduler keeps its room for 30 s:
longer than this, the wait for an answer (5 s), a scrape (2 s) and a patch (5 s) together.
"""

SOONEST: Final = Seconds(2.0)
"""The least time to the next request that only brings an answer, however soon the scheduler wishes it."""

REFUSED_BACKOFF: Final = Backoff(Seconds(5.0), Seconds(60.0))
"""After a shrink that the guest's monitor refused."""

MONITOR_GRACE: Final = Seconds(60.0)
"""How long a VM keeps its memory after its monitor is gone: time for some seven tries to reconnect."""

REFUSED_GROWTH_BACKOFF: Final = Backoff(Seconds(5.0), Seconds(300.0))
"""After a growth that the API refused for certain: a webhook or a policy that forbids it seldom changes its mind."""

DEFERRED_BACKOFF: Final = Backoff(Seconds(5.0), Seconds(40.0))
"""After a wish that the kubelet deferred was withdrawn, because it was in the way of the other resource."""

VM_API_BACKOFF: Final = Backoff(Seconds(5.0), Seconds(40.0))
"""After a failed patch."""
