"""Replica count of a group by its own load: effective intervals, vertical first (S1.12).

- The need is the mean CPU use of all replicas over a window, divided by the target utilization. Agents size each
  replica. A replica is added only if the need exceeds the maximum size of the present ones, and removed only if the
  others have room to spare.
- As in an HPA, a replica with unknown load counts as idle when scaling up and as full when scaling down. Nothing
  changes if no load is known, if no replica serves, or if the group was scaled to zero.
- Scaling up waits for ``up_delay`` after the last time (S1.8); the window filters short peaks. Scaling down waits until
  fewer replicas have been enough for ``down_delay``, and until ``down_delay`` after any scaling.
- An agent counts CPU seconds of its guest, so the difference of two counts is exact at any polling rate. A restart of
  the agent, or of this program, restarts the window.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil
from typing import Final

from protocol.units import Instant, MilliCpu, Seconds
from scheduler_plugin.groups import texts
from scheduler_plugin.groups.core.hvpa.needs import ContainerNeed, planned_replicas
from scheduler_plugin.groups.core.hvpa.spec import DEFAULT_OVERLAP
from scheduler_plugin.groups.core.replicas.members import Member
from scheduler_plugin.groups.core.workload import ReplicaBounds, Rule

_SEEN: Final = 0.5
"""Minimum fraction of a window that an agent must have observed."""


@dataclass(frozen=True, slots=True)
class AgentCpuCount:
    """An agent's counters since its start: CPU seconds used within ``duration`` seconds."""

    used: Seconds
    duration: Seconds

    def follows(self, before: AgentCpuCount) -> bool:
        """Return True if it may be a later count of the same agent process."""
        return self.used >= before.used and self.duration >= before.duration


@dataclass(frozen=True, slots=True)
class LoadWindow:
    """An agent's counts over the last ``span`` seconds, and the last one before, oldest first."""

    span: Seconds
    counts: tuple[tuple[Instant, AgentCpuCount], ...] = ()

    def after(self, count: AgentCpuCount | None, now: Instant) -> LoadWindow:
        """Add the agent's ``count`` at ``now``; None if it did not respond."""
        if count is None:
            return self
        # A gap longer than the window, or a restarted agent, restarts it.
        if self.counts and (now - self.counts[-1][0] > self.span or not count.follows(self.counts[-1][1])):
            return replace(self, counts=((now, count),))
        counts = (*self.counts, (now, count))
        # Keep only the last count before the window.
        covering = sum(now - taken >= self.span for taken, _ in counts[1:])
        return replace(self, counts=counts[covering:])

    def mean(self, now: Instant) -> float | None:
        """Mean number of busy CPUs (>= 0); None if unknown."""
        # Too old to show the present load.
        if not self.counts or now - self.counts[-1][0] > self.span:
            return None
        (began, first), (ended, last) = self.counts[0], self.counts[-1]
        observed = last.duration - first.duration
        # The counts cover too little of the window.
        if ended - began < self.span or observed < _SEEN * (ended - began):
            return None
        return (last.used - first.used) / observed


@dataclass(frozen=True, slots=True)
class GroupScaling:
    """Scaling settings of a group.

    ``utilization`` is the target fraction of a replica's CPU (0..1]; ``max_cpu`` is the maximum CPU of a replica. Loads
    are averaged over ``window``: shorter than a peak that needs another replica, longer than a burst that does not.
    """

    bounds: ReplicaBounds
    max_cpu: MilliCpu
    utilization: float = 0.7
    up_delay: Seconds = Seconds(30.0)
    down_delay: Seconds = Seconds(300.0)
    window: Seconds = Seconds(30.0)


@dataclass(frozen=True, slots=True)
class ScalingMemory:
    """Scaling history in the status, in Unix seconds; None if never.

    ``fewer_since`` is since when every reconcile has found that fewer replicas would be enough.
    """

    last_up: float | None = None
    last_down: float | None = None
    fewer_since: float | None = None

    def until(self, now: float) -> ScalingMemory:
        """Without times after ``now``, which come from a clock that was ahead."""
        times = (
            time if time is None or time <= now else None for time in (self.last_up, self.last_down, self.fewer_since)
        )
        return ScalingMemory(*times)

    def reset_fewer_since(self) -> ScalingMemory:
        """With ``fewer_since`` reset."""
        return ScalingMemory(self.last_up, self.last_down)


@dataclass(frozen=True, slots=True)
class ScalingDecision:
    """The count to set, ``replicas``, and the count that the load needs, ``desired`` (None if unknown).

    ``rule`` is the rule that makes them differ, if any; ``reason`` is a human-readable sentence (S1.11).
    """

    replicas: int
    desired: int | None
    memory: ScalingMemory
    reason: str
    rule: Rule | None = None


def decide(
    scaling: GroupScaling, current: int, replicas: Sequence[Member], memory: ScalingMemory, now: float
) -> ScalingDecision:
    """Decide the replica count; ``current`` is the present one, ``now`` is in Unix seconds."""
    memory = memory.until(now)
    # Only users scale to and from zero.
    if not current:
        return ScalingDecision(0, None, memory.reset_fewer_since(), texts.SCALED_TO_ZERO)
    # Enforce the bounds immediately.
    bounded = scaling.bounds.clamp(current)
    if bounded != current:
        limits = texts.OUT_OF_BOUNDS.format(bounds=scaling.bounds)
        return ScalingDecision(bounded, bounded, memory.reset_fewer_since(), limits)
    # A booting replica carries no load.
    loads = [replica.busy_cores for replica in replicas if replica.available and not replica.leaving]
    measured = [load for load in loads if load is not None]
    if not measured:
        unknown = texts.LOADS_UNKNOWN if loads else texts.NO_REPLICA_SERVES
        return ScalingDecision(current, None, memory.reset_fewer_since(), unknown)
    desired = _desired_replicas(scaling, current, sum(measured), len(loads) - len(measured))
    some = texts.BUSY_ON.format(known=len(measured), serving=len(loads)) if len(measured) < len(loads) else ""
    reason = texts.BUSY.format(busy=sum(measured), scaling=scaling, some=some)
    return _paced(scaling, current, desired, memory, now, reason)


def _desired_replicas(scaling: GroupScaling, current: int, busy: float, unknown: int) -> int:
    # Unknown load counts as idle when growing and as full when shrinking.
    certain, total = (
        # Rounded first, against float noise in `ceil`.
        ceil(round(cores * 1000 / scaling.utilization, 6))
        for cores in (busy, busy + unknown * scaling.max_cpu.as_cores)
    )
    # No base: all load is shared.
    need = ContainerNeed("vm", "cpu", 0, total, certain)
    return planned_replicas([need], lambda *_: scaling.max_cpu, DEFAULT_OVERLAP, current, scaling.bounds)


def _paced(  # noqa: PLR0913, PLR0917 - one decision and all that it depends on
    scaling: GroupScaling, current: int, desired: int, memory: ScalingMemory, now: float, reason: str
) -> ScalingDecision:
    if desired == current:
        return ScalingDecision(current, desired, memory.reset_fewer_since(), texts.LOAD_FITS)
    # Restart the time for which fewer were enough.
    if desired > current:
        memory = memory.reset_fewer_since()
        waits = [(memory.last_up, scaling.up_delay)]
        done = ScalingMemory(now, memory.last_down)
    else:
        since = now if memory.fewer_since is None else memory.fewer_since
        memory = replace(memory, fewer_since=since)
        # Also after any scaling, to see the effect of one step before the next.
        waits = [(start, scaling.down_delay) for start in (since, memory.last_up, memory.last_down)]
        done = ScalingMemory(memory.last_up, now)
    blocked = [span for begun, span in waits if begun is not None and now - begun < span]
    if blocked:
        reason = texts.DELAYED.format(reason=reason, delay=max(blocked))
        return ScalingDecision(current, desired, memory, reason, Rule.DELAY)
    return ScalingDecision(desired, desired, done, reason)
