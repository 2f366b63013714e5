"""Scores of existing nodes: utilisation against the watermark decides, price only breaks ties (S2.8b).

Rules that hold here:

- The scarcer resource decides. The score peaks where the curve says, never above the watermark, and falls beyond.
- A node that would hold more than it has scores 0, which says: do not place.
- Smaller nodes score in proportion to the largest, so that large VMs keep room to grow.
- Existing nodes are paid for already; a price only separates nodes of the same score. What is then still equal is left
  to chance, which is injected.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Final, TypeVar

from protocol.ranking.config import ScoreCurve
from protocol.units import Resources

K = TypeVar("K")

Draw = Callable[[int, int], int]
"""A whole number drawn uniformly from a closed range: ``random.Random(...).randint``."""

EXTENDER_MAX: Final = 10
"""The greatest score that kube-scheduler takes from an extender."""


@dataclass(frozen=True, slots=True)
class NodeUse:
    """A node as it would be with the pod: what would be reserved, its watermark, and what it has to reserve at most.

    ``price`` is per hour; ``unfitness`` as in ``rank``; both separate only nodes of equal score.
    """

    reserved: Resources
    watermark: Resources
    total: Resources
    price: float = 0.0
    unfitness: float = 1.0


def fraction(used: int, watermark: int, total: int, largest: int, curve: ScoreCurve) -> float:
    """The score (0..1) of one resource of a node, which has ``total`` of it; the largest node has ``largest``.

    Plain numbers of one unit: this runs for every node of every pending pod.
    """
    if total <= 0 or largest <= 0 or used > total:
        return 0.0
    peak, used_part = min(curve.peak, watermark / total), used / total
    size = min(1.0, total / largest)
    if used_part < peak:
        return size * (curve.empty + (1 - curve.empty) * used_part / peak)
    if used_part == peak:
        return size
    return size * (curve.full + (1 - curve.full) * (1 - used_part) / (1 - peak))


def node_score(use: NodeUse, largest: Resources, curve: ScoreCurve) -> int:
    """The score of a node, 0..100, where the largest node known has ``largest`` to reserve."""
    used, mark, total = use.reserved, use.watermark, use.total
    cpu = fraction(used.cpu.value, mark.cpu.value, total.cpu.value, largest.cpu.value, curve)
    mem = fraction(used.mem.value, mark.mem.value, total.mem.value, largest.mem.value, curve)
    return int(100 * min(cpu, mem) + 1e-9)


def extender_score(score: int) -> int:
    """A score of 0..100 as kube-scheduler takes it from an extender: 0 stays 0, everything else is 1..10."""
    return max(1, (score + 5) // 10) if score > 0 else 0


def spread(score: int, draw: Draw) -> int:
    """A number drawn from 1 to the score; 0 stays 0. Makes equal schedulers choose differently."""
    return draw(1, score) if score > 0 else 0


def prioritize(nodes: Mapping[str, NodeUse], largest: Resources, curve: ScoreCurve) -> dict[str, int]:
    """The extender's score (0..10) of every node.

    Of the nodes that share an extender score, only those best by score, price and unfitness keep it; the others get
    one less, but never 0. Nodes that end up equal are kube-scheduler's to choose from: it does so at random.
    """
    keys = {name: _preference(use, largest, curve) for name, use in nodes.items()}
    best: dict[int, tuple[float, float, float]] = {}
    for key in keys.values():
        level = extender_score(int(-key[0]))
        best[level] = min(best.get(level, key), key)
    return {name: _lowered(key, best) for name, key in keys.items()}


def _preference(use: NodeUse, largest: Resources, curve: ScoreCurve) -> tuple[float, float, float]:
    """Sorts nodes, the most wanted first."""
    return -node_score(use, largest, curve), use.price, use.unfitness


def _lowered(key: tuple[float, float, float], best: Mapping[int, tuple[float, float, float]]) -> int:
    level = extender_score(int(-key[0]))
    return level if level <= 1 or key == best[level] else level - 1


def choose_target(nodes: Mapping[K, NodeUse], largest: Resources, curve: ScoreCurve, draw: Draw) -> K | None:
    """Where a VM should move: the best score, then price, then unfitness, then chance.

    A node that the VM would lift above its watermark is no target: it would only pass the pressure on. None where no
    node is left.
    """
    keys = {name: _preference(use, largest, curve) for name, use in nodes.items() if use.reserved.within(use.watermark)}
    if not keys:
        return None
    best = min(keys.values())
    equal = [name for name, key in keys.items() if key == best]
    return equal[draw(0, len(equal) - 1)]


def order_to_empty(nodes: Sequence[tuple[K, float, int]]) -> list[K]:
    """Which node to empty first (S2.8c): the highest price per used compute unit; of equals the one with less to move.

    Each node is its name, its price per hour and the compute units used on it; an unused one comes first.
    """
    return [
        name for name, price, used in sorted(nodes, key=lambda node: (-node[1] / node[2] if node[2] else -inf, node[2]))
    ]
