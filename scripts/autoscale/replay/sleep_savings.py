"""Savings by sleep in recorded loads: when a VM would be asleep, and what its policy reserves then (B.18). Pure.

A recording does not show whether clients were active. A VM counts as idle while it needs less than the smallest size,
to which it must shrink before it sleeps; so these savings are an upper bound.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil

import numpy as np
from numpy.typing import NDArray

from protocol.units import Seconds
from scripts.autoscale.replay.play import ReplayResult, Score
from scripts.autoscale.replay.recording import UNIT, Floats, Timeline

Flags = NDArray[np.bool_]


@dataclass(frozen=True)
class RecordedSleep:
    """The scored part of a recording: its ``hours``, the hours ``asleep``, the number of ``sleeps``, and by policy the
    vCPU-hours ``reserved`` and ``saved`` by sleep.
    """

    recording: str
    hours: float
    asleep: float
    sleeps: int
    reserved: Mapping[str, float]
    saved: Mapping[str, float]


def sleeping(demand: Floats, steps: int) -> Flags:
    """Flags the steps at which a VM sleeps: after ``steps`` (at least 1) idle ones, until the next load.

    >>> sleeping(np.array([1.0, 0.1, 0.1, 0.1, 0.1, 1.0, 0.1]), 2).tolist()
    [False, False, False, True, True, False, False]
    """
    at = np.arange(len(demand))
    # The last step with a load up to each step; the recording starts after a load.
    busy = np.maximum.accumulate(np.where(demand >= UNIT, at, -1))
    return np.asarray(at - busy > steps, dtype=np.bool_)


def savings(results: Sequence[ReplayResult[Score]], after: Seconds) -> list[RecordedSleep]:
    """The savings in each replayed recording by sleep after ``after`` (above zero) without load."""
    return [_savings(result.timeline, result.allocations, after) for result in results]


def _savings(line: Timeline, allocations: Mapping[str, Floats], after: Seconds) -> RecordedSleep:
    hours_a_step = line.step / 3600
    asleep = sleeping(line.demand, max(1, ceil(after / line.step)))[line.warm_up :]
    scored = {name: allocation[line.warm_up :] for name, allocation in allocations.items()}
    return RecordedSleep(
        line.name,
        line.scored_hours,
        float(asleep.sum()) * hours_a_step,
        # A sleep in progress at the start counts.
        int((np.diff(asleep, prepend=False) & asleep).sum()),
        {name: float(allocation.sum()) * hours_a_step for name, allocation in scored.items()},
        {name: float(allocation[asleep].sum()) * hours_a_step for name, allocation in scored.items()},
    )
