"""Scores of existing nodes by utilization relative to the watermark; price only breaks ties (S2.8b)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

from protocol.ranking.config import ScoreCurve

K = TypeVar("K")

Draw = Callable[[int, int], int]
"""Draws a uniform integer from a closed range, like ``random.Random(...).randint``."""

NodeRank = tuple[int, float, float]
"""The rank of a node, best first: negated score, price, unfitness."""


def fraction(used: int, watermark: int, total: int, curve: ScoreCurve) -> float:
    """The score (0..1) of one resource of a node with ``total`` of it.

    All amounts are plain numbers in the same unit, because this runs for every node of every pending pod.

    >>> fraction(400, 900, 1000, ScoreCurve()), fraction(1001, 900, 1000, ScoreCurve())
    (0.75, 0.0)
    """
    # An overcommitted node scores 0, regardless of the curve.
    if total <= 0 or used > total:
        return 0.0
    peak, part = watermark / total, used / total
    peak = min(peak, curve.peak)
    if part < peak:
        return curve.empty + (1 - curve.empty) * part / peak
    if part == peak:
        return 1.0
    return curve.full + (1 - curve.full) * (1 - part) / (1 - peak)


def percent(cpu: float, mem: float) -> int:
    """The score of a node, 0..100, from the scores of its resources.

    >>> percent(0.75, 1.0)
    75
    """
    # The scarcer resource decides. The epsilon keeps 0.29 * 100 from becoming 28.
    return int(100 * (min(mem, cpu)) + 1e-9)


def extender_score(score: int) -> int:
    """A score of 0..100 on an extender's scale: 0 stays 0, everything else becomes 1..10.

    >>> extender_score(75), extender_score(1), extender_score(0)
    (8, 1, 0)
    """
    # Never round down to 0, which means that the node is full.
    return max(1, (score + 5) // 10) if score > 0 else 0


def extender_scores(ranks: Iterable[NodeRank]) -> dict[NodeRank, int]:
    """The extender's score (0..10) for each distinct rank of the candidate nodes.

    If several ranks have the same extender score, only the best keeps it; the others get one less, but never 0.
    kube-scheduler chooses randomly among nodes with equal scores.

    >>> extender_scores([(-100, 1.0, 1.0), (-100, 2.0, 1.0)])
    {(-100, 1.0, 1.0): 10, (-100, 2.0, 1.0): 9}
    """
    scores: dict[NodeRank, int] = {}
    above = 0
    for rank in sorted(set(ranks)):
        level = extender_score(-rank[0])
        # Only the best keeps the score, so that kube-scheduler sees the difference in price.
        scores[rank] = level - 1 if level == above > 1 else level
        above = level
    return scores


def choose_target(ranks: Mapping[K, NodeRank], draw: Draw) -> K | None:
    """The best target for a VM by score, price and unfitness, with random choice among equals. None without nodes.

    >>> choose_target({"cheap": (-90, 1.0, 1.0), "dear": (-90, 2.0, 1.0)}, lambda low, high: low)
    'cheap'
    """
    if not ranks:
        return None
    best = min(ranks.values())
    equal = [name for name, rank in ranks.items() if rank == best]
    # ``draw`` is injected, so that tests are deterministic.
    return equal[draw(0, len(equal) - 1)]
