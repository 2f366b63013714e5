"""Replica count of a group by its own load: effective intervals, vertical first (S1.12).

- The need is the mean use of all replicas over a window divided by the target utilisation. Agents size each replica.
  One is added only if the need exceeds the maximum of the present ones, and removed only if the rest has room to spare.
- As in an HPA, a replica with unknown load counts as idle when growing and as full when shrinking. Nothing changes if
  no load is known or no replica serves, or for a group that was scaled to zero.
- Growing waits for ``up_delay`` after the last growth (S1.8); the window filters short peaks. Shrinking waits until
  fewer have been enough throughout ``down_delay``, and for as long after any scaling.
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
    """Counts of one replica over the last ``span`` seconds and the one before, oldest first."""

    span: Seconds
    counts: tuple[tuple[Instant, AgentCpuCount], ...] = ()

    def after(self, count: AgentCpuCount | None, now: Instant) -> LoadWindow:
        """The window at ``now`` with the agent's ``count``; None if it did not respond."""
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
        # Too old for the present load.
        if not self.counts or now - self.counts[-1][0] > self.span:
            return None
        (began, first), (ended, last) = self.counts[0], self.counts[-1]
        observed = last.duration - first.duration
        # The agent observed too little of that time.
        if ended - began < self.span or observed < _SEEN * (ended - began):
            return None
        return (last.used - first.used) / observed


@dataclass(frozen=True, slots=True)
class GroupScaling:
    """Scaling settings of a group.

    ``utilization`` is the target fraction of a replica's CPU (0..1]; ``most`` is the maximum CPU of a replica.
    ``window`` is the averaging window: shorter than a peak that needs another replica, longer than brief work.
    """

    bounds: ReplicaBounds
    most: MilliCpu
    utilization: float = 0.7
    up_delay: Seconds = Seconds(30.0)
    down_delay: Seconds = Seconds(300.0)
    window: Seconds = Seconds(30.0)


@dataclass(frozen=True, slots=True)
class ScalingMemory:
    """Scaling history in the status, in Unix seconds; None if never.

    ``fewer_since``: since when fewer were enough in every reconcile.
    """

    last_up: float | None = None
    last_down: float | None = None
    fewer_since: float | None = None

    def until(self, now: float) -> ScalingMemory:
        """Without times after ``now``, which are from another clock."""
        times = (
            moment if moment is None or moment <= now else None
            for moment in (self.last_up, self.last_down, self.fewer_since)
        )
        return ScalingMemory(*times)

    def at_rest(self) -> ScalingMemory:
        """With ``fewer_since`` reset."""
        return ScalingMemory(self.last_up, self.last_down)


@dataclass(frozen=True, slots=True)
class ScalingDecision:
    """Replica counts: ``wanted`` by load (None if unknown), and ``replicas`` now.

    ``rule`` is why they differ, None if they do not; ``because`` is the sentence for people (S1.11).
    """

    replicas: int
    wanted: int | None
    memory: ScalingMemory
    because: str
    rule: Rule | None = None


def decide(
    scaling: GroupScaling, current: int, replicas: Sequence[Member], memory: ScalingMemory, now: float
) -> ScalingDecision:
    """The replica count, with ``current`` so far; ``now`` in Unix seconds."""
    memory = memory.until(now)
    # Only people scale to and from zero.
    if not current:
        return ScalingDecision(0, None, memory.at_rest(), texts.SCALED_TO_ZERO)
    # Enforce the bounds at once.
    bounded = scaling.bounds.clamp(current)
    if bounded != current:
        limits = texts.OUT_OF_BOUNDS.format(bounds=scaling.bounds)
        return ScalingDecision(bounded, bounded, memory.at_rest(), limits)
    # A booting replica carries no load.
    loads = [replica.busy_cores for replica in replicas if replica.available and not replica.leaving]
    measured = [load for load in loads if load is not None]
    if not measured:
        unknown = texts.LOADS_UNKNOWN if loads else texts.NO_REPLICA_SERVES
        return ScalingDecision(current, None, memory.at_rest(), unknown)
    wanted = _wanted(scaling, current, sum(measured), len(loads) - len(measured))
    some = texts.BUSY_ON.format(known=len(measured), serving=len(loads)) if len(measured) < len(loads) else ""
    story = texts.BUSY.format(busy=sum(measured), scaling=scaling, some=some)
    return _paced(scaling, current, wanted, memory, now, story)


def _wanted(scaling: GroupScaling, current: int, busy: float, unknown: int) -> int:
    # Unknown load counts as idle when growing and as full when shrinking.
    sure, total = (
        # Rounded first, against float noise in `ceil`.
        ceil(round(cores * 1000 / scaling.utilization, 6))
        for cores in (busy, busy + unknown * scaling.most.as_cores)
    )
    # No base: all load is shared.
    need = ContainerNeed("vm", "cpu", 0, total, sure)
    return planned_replicas([need], lambda *_: scaling.most, DEFAULT_OVERLAP, current, scaling.bounds)


def _paced(  # noqa: PLR0913, PLR0917 - one decision and all that it depends on
    scaling: GroupScaling, current: int, wanted: int, memory: ScalingMemory, now: float, story: str
) -> ScalingDecision:
    if wanted == current:
        return ScalingDecision(current, wanted, memory.at_rest(), texts.LOAD_FITS)
    # Restart the time for which fewer were enough.
    if wanted > current:
        memory = memory.at_rest()
        waits = [(memory.last_up, scaling.up_delay)]
        done = ScalingMemory(now, memory.last_down)
    else:
        since = now if memory.fewer_since is None else memory.fewer_since
        memory = replace(memory, fewer_since=since)
        # After any scaling, so that one step shows its effect first.
        waits = [(start, scaling.down_delay) for start in (since, memory.last_up, memory.last_down)]
        done = ScalingMemory(memory.last_up, now)
    blocked = [span for begun, span in waits if begun is not None and now - begun < span]
    if blocked:
        story = texts.DELAYED.format(story=story, delay=max(blocked))
        return ScalingDecision(current, wanted, memory, story, Rule.DELAY)
    return ScalingDecision(wanted, wanted, done, story)
