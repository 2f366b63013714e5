"""Cost of a policy, and the demand that it missed."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from scripts.autoscale.replay.recording import UNIT, Floats, Timeline


class Score(msgspec.Struct, frozen=True):
    """The four figures of one policy on one recording, or overall.

    - ``cost``: vCPU-seconds provided over those of the oracle, which gives the demand of the moment rounded up to the
      unit.
    - ``insufficient_percent``: the part of the demand that exceeded the allocation.
    - ``throttled_percent``: the part of the time in which it did.
    - ``actions_per_hour``: changes of the allocation per scored hour.
    """

    cost: float
    insufficient_percent: float
    throttled_percent: float
    actions_per_hour: float


def score(timeline: Timeline, allocation: Floats) -> Score:
    """Scores an allocation (vCPUs at every step) against the scored part of the timeline."""
    demand, allocated = timeline.demand[timeline.warm_up :], allocation[timeline.warm_up :]
    missing = np.maximum(0.0, demand - allocated)
    oracle = float((np.ceil(demand / UNIT - 1e-9) * UNIT).sum())
    needed = float(demand.sum())
    return Score(
        cost=float(allocated.sum()) / oracle if oracle else float("nan"),
        insufficient_percent=100 * float(missing.sum()) / needed if needed else 0.0,
        # A tolerance, or rounding would count as a shortage.
        throttled_percent=100 * float((missing > 1e-9).mean()),
        actions_per_hour=float((np.diff(allocated) != 0).sum()) / timeline.scored_hours,
    )


def overall(scores: Sequence[Score]) -> Score:
    """The geometric mean of the costs and the plain mean of everything else, over one score or more."""
    # The logarithm of zero or NaN would make the whole mean useless.
    costs = [one.cost for one in scores if one.cost > 0]
    return Score(
        # Costs are ratios, so their mean is the geometric one.
        cost=float(np.exp(np.mean(np.log(costs)))) if costs else float("nan"),
        insufficient_percent=float(np.mean([one.insufficient_percent for one in scores])),
        throttled_percent=float(np.mean([one.throttled_percent for one in scores])),
        actions_per_hour=float(np.mean([one.actions_per_hour for one in scores])),
    )
