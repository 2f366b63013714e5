"""How many read replicas a group should have by its own load: effective intervals, vertical first (S1.12).

- The need is the mean use of all replicas over a window, divided by the target utilisation. Agents size each replica;
  another one is added only if the need exceeds what the present ones can have, and one is removed only if the need fits
  the others with room to spare.
- A replica with unknown load counts as idle when growing and as full when shrinking, as with an HPA. If no load is
  known, or no replica serves, nothing changes; nor does a group that people scaled to zero.
- Growing waits for ``up_delay`` after the last growth (S1.8); the window keeps a moment of load from adding replicas.
  Shrinking waits until fewer have been enough for all of ``down_delay``, and for as long after any scaling.
- An agent counts the CPU seconds that it saw its guest use. The difference of two counts is exact, however often one
  looks. A restart of an agent, or of this program, starts its window over: a decision waits for one window.
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
"""The share of a window that an agent must have seen of its guest for its mean to count."""


@dataclass(frozen=True, slots=True)
class AgentCpuCount:
    """The agent's counters since it started: seconds of CPU used, within ``seen`` seconds."""

    used: Seconds
    seen: Seconds

    def follows(self, before: AgentCpuCount) -> bool:
        """Return True if it can be a later count of the same agent."""
        return self.used >= before.used and self.seen >= before.seen


@dataclass(frozen=True, slots=True)
class LoadWindow:
    """The counts of one replica over the last ``span`` seconds and the one before them, oldest first."""

    span: Seconds
    counts: tuple[tuple[Instant, AgentCpuCount], ...] = ()

    def after(self, count: AgentCpuCount | None, now: Instant) -> LoadWindow:
        """The window at ``now``, when the agent said ``count``; None if it said nothing."""
        if count is None:
            return self
        # A gap of more than a window, or a count that fell because the agent was restarted, starts it over.
        if self.counts and (now - self.counts[-1][0] > self.span or not count.follows(self.counts[-1][1])):
            return replace(self, counts=((now, count),))
        counts = (*self.counts, (now, count))
        # Of the counts that cover the window only the last one stays.
        covering = sum(now - taken >= self.span for taken, _ in counts[1:])
        return replace(self, counts=counts[covering:])

    def mean(self, now: Instant) -> float | None:
        """The mean number of CPUs that were busy (>= 0); None if it is not known."""
        # A count that is too old does not show the load now.
        if not self.counts or now - self.counts[-1][0] > self.span:
            return None
        (began, first), (ended, last) = self.counts[0], self.counts[-1]
        observed = last.seen - first.seen
        # An agent that saw its guest for only a small part of that time proves nothing.
        if ended - began < self.span or observed < _SEEN * (ended - began):
            return None
        return (last.used - first.used) / observed


@dataclass(frozen=True, slots=True)
class GroupScaling:
    """Scaling settings of a group.

    ``utilization`` is the share of a replica's CPU that its load may take (0..1]; ``most`` is the most CPU that a
    replica may have. ``window`` is what loads are means of: shorter than a peak that is worth another replica, and long
    enough that a moment of work is not.
    """

    bounds: ReplicaBounds
    most: MilliCpu
    utilization: float = 0.7
    up_delay: Seconds = Seconds(30.0)
    down_delay: Seconds = Seconds(300.0)
    window: Seconds = Seconds(30.0)


@dataclass(frozen=True, slots=True)
class ScalingMemory:
    """Scaling history in the status, in seconds since 1970; None if it has not happened.

    ``fewer_since``: from when on fewer were enough at every look.
    """

    last_up: float | None = None
    last_down: float | None = None
    fewer_since: float | None = None

    def until(self, now: float) -> ScalingMemory:
        """The same without times after ``now``: they come from another clock and prove nothing."""
        times = (
            moment if moment is None or moment <= now else None
            for moment in (self.last_up, self.last_down, self.fewer_since)
        )
        return ScalingMemory(*times)

    def at_rest(self) -> ScalingMemory:
        """The same once as many as there are were right, more were needed, or it was not known."""
        return ScalingMemory(self.last_up, self.last_down)


@dataclass(frozen=True, slots=True)
class ScalingDecision:
    """Replica counts: ``wanted`` by the load alone (None if unknown), and ``replicas`` now.

    ``rule`` says by what the two differ, None if they do not; ``because`` is the sentence for people (S1.11).
    """

    replicas: int
    wanted: int | None
    memory: ScalingMemory
    because: str
    rule: Rule | None = None


def decide(
    scaling: GroupScaling, current: int, replicas: Sequence[Member], memory: ScalingMemory, now: float
) -> ScalingDecision:
    """The replica count, given ``current`` so far; ``now`` in seconds since 1970."""
    memory = memory.until(now)
    # Only people scale a group to zero, and only people scale it up again.
    if not current:
        return ScalingDecision(0, None, memory.at_rest(), texts.SCALED_TO_ZERO)
    # A count outside the bounds is corrected at once, without delays.
    bounded = scaling.bounds.clamp(current)
    if bounded != current:
        limits = texts.OUT_OF_BOUNDS.format(bounds=scaling.bounds)
        return ScalingDecision(bounded, bounded, memory.at_rest(), limits)
    # A replica that boots carries no load of clients, so it does not count.
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
    # A replica whose load is not known counts as idle when growing and as full when shrinking.
    sure, total = (
        # Rounded first: `ceil` would take a float such as 2000.0000000001 for one thousandth more.
        ceil(round(cores * 1000 / scaling.utilization, 6))
        for cores in (busy, busy + unknown * scaling.most.as_cores)
    )
    # No base part: the whole load is shared by all replicas.
    need = ContainerNeed("vm", "cpu", 0, total, sure)
    return planned_replicas([need], lambda *_: scaling.most, DEFAULT_OVERLAP, current, scaling.bounds)


def _paced(  # noqa: PLR0913, PLR0917 - one decision and all that it depends on
    scaling: GroupScaling, current: int, wanted: int, memory: ScalingMemory, now: float, story: str
) -> ScalingDecision:
    if wanted == current:
        return ScalingDecision(current, wanted, memory.at_rest(), texts.LOAD_FITS)
    # More are needed, so the time for which fewer were enough starts over.
    if wanted > current:
        memory = memory.at_rest()
        waits = [(memory.last_up, scaling.up_delay)]
        done = ScalingMemory(now, memory.last_down)
    else:
        since = now if memory.fewer_since is None else memory.fewer_since
        memory = replace(memory, fewer_since=since)
        # Shrinking waits after any scaling, so that one step shows its effect before the next.
        waits = [(start, scaling.down_delay) for start in (since, memory.last_up, memory.last_down)]
        done = ScalingMemory(memory.last_up, now)
    blocked = [span for begun, span in waits if begun is not None and now - begun < span]
    if blocked:
        story = texts.DELAYED.format(story=story, delay=max(blocked))
        return ScalingDecision(current, wanted, memory, story, Rule.DELAY)
    return ScalingDecision(wanted, wanted, done, story)
