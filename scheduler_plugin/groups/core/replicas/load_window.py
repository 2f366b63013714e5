"""How busy a replica has been over a window: the mean of what its agent counted (pure).

- An agent counts the CPU seconds that it saw its guest use, and the seconds over which it saw that. The difference of
  two counts is exact, however often one looks, and however busy the guest is at that moment.
- A mean is known once the counts cover the window. A count that fell, because the agent was restarted, and one that
  comes after more than a window start it over. So does a restart of this program: a decision waits for one window.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final

from protocol.units import Instant, Seconds

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
        covering = [later for _, later in pairwise(counts) if _covers(later, now, self.span)]
        return replace(self, counts=counts[len(covering) :])

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


def _covers(count: tuple[Instant, AgentCpuCount], now: Instant, span: Seconds) -> bool:
    """Return True if the window can begin with that count, so that no earlier one is needed."""
    return now - count[0] >= span
