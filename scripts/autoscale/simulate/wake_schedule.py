"""Selects the agents that must observe their guests in a step; skipping the others makes the simulation fast."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from agent.core.policy import Smoothing
from protocol.smoothing.spec import Duration
from protocol.units import Seconds
from scripts.autoscale.simulate.recording_grid import Flags, Ints


def recheck_delays(smoothing: Smoothing, step: Seconds) -> list[int]:
    """The steps after a change at which it leaves a window: each window's length, alone and after the longest one.

    A window shorter than a step has passed by the next step and needs no recheck of its own.
    """
    # While demand and size stay the same, an agent's answer changes only when a sample leaves a window of its policy.
    spans = {
        int(span // step) + 1
        for policy in (smoothing.cpu, smoothing.memory)
        for _, spec in policy.stages
        for span in (getattr(spec, name) for name in spec.__struct_fields__)
        if isinstance(span, Duration) and span >= step
    }
    longest = max(spans, default=1)
    # The delays of consecutive stages add up, so a recheck may be a step or two late, but never early.
    return sorted(spans | {longest + span for span in spans if span != longest})


class WakeSchedule:
    """Agents that run in each step. The caller keeps ``may_shrink`` up to date."""

    def __init__(self, count: int, delays: Iterable[int]) -> None:
        self._delays = list(delays)
        self._rounds = max(self._delays, default=0) + 1
        self._changed = np.zeros((self._rounds, count), dtype=np.bool_)
        # Every agent runs in the first step.
        self._next: set[int] = set(range(count))
        self.may_shrink = np.ones(count, dtype=np.bool_)

    def due(self, step: int, is_new: Flags) -> Ints:
        """The agents that run in this step. ``is_new``: their guests' demand has just changed."""
        # A ring of rows, as old as the longest delay; this step overwrites the oldest.
        changed = self._changed[step % self._rounds]
        changed[:] = is_new
        recheck = np.zeros_like(is_new)
        for delay in self._delays:
            recheck |= self._changed[(step - delay) % self._rounds]
        # A sample that leaves a window can only lower the target, so a VM that cannot shrink skips the recheck.
        due = is_new | (recheck & self.may_shrink)
        due[list(self._next)] = True
        self._next.clear()
        return np.flatnonzero(due)

    def note_change(self, step: int, vm: int) -> None:
        """The VM has another size or another agent since this step: it runs in the next, and is rechecked later."""
        self._changed[step % self._rounds, vm] = True
        self._next.add(vm)

    def wake_next(self, vm: int) -> None:
        """The VM's agent runs in the next step in any case."""
        self._next.add(vm)
