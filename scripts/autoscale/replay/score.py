"""Costs of policies, and the demand that they missed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import msgspec
import numpy as np

from scripts.autoscale.replay.recording import UNIT, Floats, Timeline


class PolicyFigures(msgspec.Struct, frozen=True):
    """The figures of one policy on one recording, or overall, of a VM and of a group.

    - ``cost``: vCPU-seconds provided, or ordered, over those of the oracle.
    - ``insufficient_percent``: the part of the demand that exceeded what was given.
    - ``throttled_percent``: the part of the time in which it did.
    """

    cost: float
    insufficient_percent: float
    throttled_percent: float

    def __str__(self) -> str:
        """The figures in words."""
        return f"{self.cost:.2f} x oracle  ·  {self.insufficient_percent:.2f} % of demand short"


class Score(PolicyFigures, frozen=True):
    """Of a VM; its oracle gives the demand of the moment rounded up to the unit.

    ``actions_per_hour``: changes of the allocation per scored hour.
    """

    actions_per_hour: float

    def __str__(self) -> str:
        """The figures in words."""
        return f"{super().__str__()}  ·  {self.actions_per_hour:.0f} resizes/h"


S = TypeVar("S", bound=PolicyFigures)


def score(timeline: Timeline, allocation: Floats) -> Score:
    """Scores an allocation (vCPUs at every step) against the scored part of the timeline."""
    demand, allocated = timeline.demand[timeline.warm_up :], allocation[timeline.warm_up :]
    oracle = float((np.ceil(demand / UNIT - 1e-9) * UNIT).sum())
    return Score(
        float(allocated.sum()) / oracle if oracle else float("nan"),
        *shortage(demand, allocated),
        actions_per_hour=float((np.diff(allocated) != 0).sum()) / timeline.scored_hours,
    )


def shortage(demand: Floats, given: Floats) -> tuple[float, float]:
    """The part of the demand that exceeded what was given, and the part of the time in which it did, in percent."""
    missing, needed = np.maximum(0.0, demand - given), float(demand.sum())
    # A tolerance, or rounding would count as a shortage.
    return 100 * float(missing.sum()) / needed if needed else 0.0, 100 * float((missing > 1e-9).mean())


def overall(scores: Sequence[S]) -> S:
    """The geometric mean of the costs and the plain mean of everything else, over one score or more."""
    # The logarithm of zero or NaN would make the whole mean useless.
    costs = [one.cost for one in scores if one.cost > 0]
    means = (float(np.mean(figures)) for figures in zip(*map(msgspec.structs.astuple, scores), strict=True))
    # Costs are ratios, so their mean is the geometric one.
    cost = float(np.exp(np.mean(np.log(costs)))) if costs else float("nan")
    return msgspec.structs.replace(type(scores[0])(*means), cost=cost)
