"""Score of a node, computed by ``protocol.ranking`` from its room (S2.8b)."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple

from protocol.ranking.config import RankingConfig, ScoreCurve
from protocol.ranking.node_score import Draw, NodeRank, choose_target, fraction, percent
from protocol.ranking.rank import preferred_vcpus, unfitness
from protocol.units import ZERO, MilliCpu, Resources
from scheduler_plugin.placement.verdict import Room


@lru_cache(maxsize=1024)  # nodes have few sizes, and every change is scored for every pod size
def unfitness_of(total: MilliCpu, preferred: float) -> float:
    """Ratio of a node with ``total`` for pods to the preferred number of vCPUs, or the inverse (S2.3)."""
    return unfitness(preferred, max(total.as_cores, 0.001))


class PodDemand(NamedTuple):
    """The claim of a pod on its node, and the amount by which its VM may grow there."""

    claim: Resources
    growth: Resources = ZERO

    def plus(self, other: PodDemand) -> PodDemand:
        """Both pods together: only one of them may be about to grow."""
        return PodDemand(self.claim + other.claim, self.growth.at_least(other.growth))


def node_rank(room: Room, pod: PodDemand, curve: ScoreCurve, preferred: float) -> NodeRank:
    """Rank of the node for a pod that fits (S2.8b).

    The largest growth of one VM there, or of the pod's own, counts as used. ``preferred`` is the number of vCPUs of a
    node that suits the cluster.
    """
    used, mark, total, (claim, growth) = room.reserved, room.watermark, room.total, pod
    cpu_growth, mem_growth = max(room.growth.cpu, growth.cpu).value, max(room.growth.mem, growth.mem).value
    score = percent(
        _fraction(used.cpu.value + claim.cpu.value, cpu_growth, mark.cpu.value, total.cpu.value, curve),
        _fraction(used.mem.value + claim.mem.value, mem_growth, mark.mem.value, total.mem.value, curve),
    )
    # Compared as tuples, lowest first.
    return -score, room.price, unfitness_of(total.cpu, preferred)


def _fraction(used: int, growth: int, watermark: int, total: int, curve: ScoreCurve) -> float:
    grown = used + int(curve.growth * growth)
    # Below zero if the growth would not fit, so that the node that lacks the least for it comes first.
    return (total - grown) / total if 0 < total < grown and used <= total else fraction(grown, watermark, total, curve)


class Ranks:
    """Ranks of many nodes for pods of size ``pod``; cached, because nodes often have equal room."""

    def __init__(self, pod: PodDemand, curve: ScoreCurve, preferred: float) -> None:
        self._pod, self._curve, self._preferred = pod, curve, preferred
        self._cached: dict[tuple[int | float, ...], NodeRank] = {}

    def of(self, room: Room) -> NodeRank:
        """Rank of the node."""
        used, mark, total = room.reserved, room.watermark, room.total
        cpu, mem = (used.cpu.value, mark.cpu.value, total.cpu.value), (used.mem.value, mark.mem.value, total.mem.value)
        key = (*cpu, *mem, room.growth.cpu.value, room.growth.mem.value, room.price)
        rank = self._cached.get(key)
        if rank is None:
            rank = self._cached[key] = node_rank(room, self._pod, self._curve, self._preferred)
        return rank


def stays_below_watermark(room: Room, claim: Resources) -> bool:
    """Return True if the node is open and stays below its watermark with ``claim`` added."""
    # Integers for speed, as in ``verdict``.
    used, mark = room.reserved, room.watermark
    fits = used.cpu.value + claim.cpu.value <= mark.cpu.value and used.mem.value + claim.mem.value <= mark.mem.value
    return fits and room.is_open and claim.within(room.free)


def best_target(
    rooms: Mapping[str, Room], pod: PodDemand, ranking: RankingConfig, draw: Draw, *, nodes: int
) -> str | None:
    """The best of ``rooms`` for a VM of that size (S2.8b); None if it fits nowhere below a watermark.

    ``nodes`` is the number of nodes in the whole cluster.
    """
    preferred = preferred_vcpus(nodes, ranking)
    ranks = Ranks(pod, ranking.score, preferred)
    # A target above its watermark would only pass the pressure on.
    targets = {name: ranks.of(room) for name, room in rooms.items() if stays_below_watermark(room, pod.claim)}
    return choose_target(targets, draw)
