"""Sleep in recorded loads: when a VM would be asleep, and what its policy reserves then (B.18). Pure.

A recording does not say whether a client did anything. A VM counts as idle while it needs less than the smallest size,
to which it has to shrink before it sleeps anyway; so these savings are an upper bound.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil

import numpy as np
from numpy.typing import NDArray

from protocol.units import Seconds
from scripts.autoscale.replay.play import Played, Score
from scripts.autoscale.replay.recording import UNIT, Floats, Timeline

Flags = NDArray[np.bool_]


@dataclass(frozen=True)
class RecordedSleep:
    """The scored part of one recording: ``hours``, those ``asleep`` of them, the number of ``sleeps``, and for each
    policy the vCPU-hours that it reserved, and those of them that sleep ``saved``.
    """

    recording: str
    hours: float
    asleep: float
    sleeps: int
    reserved: Mapping[str, float]
    saved: Mapping[str, float]


def sleeping(demand: Floats, steps: int) -> Flags:
    """The steps in which a VM sleeps that may after ``steps`` idle ones (at least 1); it wakes with the next load.

    >>> sleeping(np.array([1.0, 0.1, 0.1, 0.1, 0.1, 1.0, 0.1]), 2).tolist()
    [False, False, False, True, True, False, False]
    """
    at = np.arange(len(demand))
    # The last step with a load before each step; the steps before the recording count as such.
    busy = np.maximum.accumulate(np.where(demand >= UNIT, at, -1))
    return np.asarray(at - busy > steps, dtype=np.bool_)


def savings(played: Sequence[Played[Score]], after: Seconds) -> list[RecordedSleep]:
    """The savings of sleep after ``after`` (above zero) in each recording that was played."""
    return [_savings(one.timeline, one.allocations, after) for one in played]


def _savings(line: Timeline, allocations: Mapping[str, Floats], after: Seconds) -> RecordedSleep:
    hours_a_step = line.step / 3600
    asleep = sleeping(line.demand, max(1, ceil(after / line.step)))[line.warm_up :]
    scored = {name: allocation[line.warm_up :] for name, allocation in allocations.items()}
    return RecordedSleep(
        line.name,
        line.scored_hours,
        float(asleep.sum()) * hours_a_step,
        # A sleep under way at the beginning counts as one.
        int((np.diff(asleep, prepend=False) & asleep).sum()),
        {name: float(allocation.sum()) * hours_a_step for name, allocation in scored.items()},
        {name: float(allocation[asleep].sum()) * hours_a_step for name, allocation in scored.items()},
    )
