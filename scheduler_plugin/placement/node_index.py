"""Cached verdicts and ranks of all nodes for pods of one size: kube-scheduler asks about thousands at once (S4.10).

Verdicts come from ``placement.verdict``, ranks from ``protocol.ranking``; both are cached until the node's room
changes.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from itertools import chain, filterfalse, islice
from typing import Final
from zlib import crc32

from protocol.ranking.config import RankingConfig
from protocol.ranking.node_score import NodeRank, extender_scores
from protocol.ranking.rank import preferred_vcpus
from scheduler_plugin.placement.scoring import PodDemand, Ranks, node_rank
from scheduler_plugin.placement.verdict import FITS, Filtered, Room, Verdict, group_by_verdict, verdict

# A new size costs one evaluation of every node; an index takes about 200 bytes per node.
MAX_INDEXES: Final = 64

MIN_LOG: Final = 1_000
"""Minimum length of the change log, otherwise twice the number of nodes, when about every node has changed."""

_LAST: Final[NodeRank] = (1, 0.0, 0.0)
"""Sorts after every node with room."""


class NodeIndex:
    """Verdict and rank of every known node for pods of size ``pod``.

    ``stale`` nodes must be evaluated again. ``read`` is the position in the change log. ``preferred`` is the number of
    vCPUs of a node that suits a cluster of this size.
    """

    def __init__(self, pod: PodDemand, rooms: Mapping[str, Room], ranking: RankingConfig) -> None:
        # A dictionary as an ordered set: equal nodes keep the order of their changes, so that simulations repeat.
        self.stale = dict.fromkeys(rooms)
        self.read = 0
        self._pod = pod
        self._rooms = rooms
        self._curve = ranking.score
        self.preferred = preferred_vcpus(len(rooms), ranking)
        self._verdicts: dict[str, Verdict] = {}
        self._fitting: set[str] = set()
        # Ranks are numbered because integers hash faster, and this runs for thousands of nodes.
        self._numbers: dict[str, int] = {}
        self._nodes: dict[int, dict[str, None]] = {}
        self._number_of: dict[NodeRank, int] = {}
        self._ranks: list[NodeRank] = []
        self._present: list[NodeRank] = []

    def filter(self, names: Sequence[str]) -> Filtered:
        """The ``names`` that the pod fits, in their order."""
        self._refresh()
        # Fast path in a cluster with room.
        if self._fitting.issuperset(names):
            return Filtered(list(names), {}, {})
        return group_by_verdict(names, self._verdicts)

    def fitting(self) -> frozenset[str] | set[str]:
        """All nodes that the pod fits; do not modify."""
        self._refresh()
        return self._fitting

    def scores(self, names: Sequence[str]) -> list[int]:
        """The extender's score (0..10) for each of ``names``: 0 if the pod does not fit, else at least 1."""
        self._refresh()
        numbers = list(map(self._numbers.get, names))
        ranks = {number: self._ranks[number] for number in set(numbers) if number is not None}
        scores = extender_scores(ranks.values())
        score_of: dict[int | None, int] = {None: 0}
        # 0 means that the pod does not fit.
        score_of |= {number: max(1, scores[rank]) for number, rank in ranks.items()}
        return list(map(score_of.__getitem__, numbers))

    def best(
        self,
        candidates: Container[str],
        limit: int,
        taken: Mapping[str, PodDemand],
        avoids: Callable[[str], bool],
        start: int,
    ) -> list[str]:
        """The best ``limit`` of those ``candidates`` nodes that the pod fits.

        ``taken`` is about to be claimed in addition to reservations. Nodes without room after that, and nodes that the
        pod ``avoids``, are a last resort. ``start`` chooses the first among equals.
        """
        self._refresh()
        reranked = {name: self._rank_with_binding(name, pods) for name, pods in taken.items() if name in self._numbers}

        def ranked() -> Iterator[str]:
            for rank in sorted({*self._present, *reranked.values()}) if reranked else self._present:
                nodes = self._nodes.get(self._number_of.get(rank, -1), {})
                # Each pod starts at another of the equal nodes, so that pods created together spread.
                turn = start % len(nodes) if nodes else 0
                unmoved = (
                    name for name in chain(islice(nodes, turn, None), islice(nodes, turn)) if name not in reranked
                )
                moved = sorted(name for name, new_rank in reranked.items() if new_rank == rank)
                yield from (name for name in chain(moved, unmoved) if name in candidates)

        # Avoided nodes only if there are no others.
        return list(islice(filterfalse(avoids, ranked()), limit)) or list(islice(ranked(), limit))

    def _rank_with_binding(self, name: str, taken: PodDemand) -> NodeRank:
        room = self._rooms[name]
        # It still fits by reservations, so it stays as a last resort.
        together = self._pod.plus(taken)
        if not together.claim.within(room.free):
            return _LAST
        return node_rank(room, together, self._curve, self.preferred)

    def _refresh(self) -> None:
        if not self.stale:
            return
        ranks = Ranks(self._pod, self._curve, self.preferred)
        for name in self.stale:
            room = self._rooms.get(name)
            self._verdicts[name] = verdict(room, self._pod.claim)
            if room is not None and self._verdicts[name] is FITS:
                self._fitting.add(name)
                self._enter(name, self._number(ranks.of(room)))
            else:
                self._fitting.discard(name)
                self._enter(name, None)
            if room is None:
                del self._verdicts[name]
        self.stale.clear()

    def _enter(self, name: str, number: int | None) -> None:
        before = self._numbers.pop(name, None)
        if before is not None:
            del self._nodes[before][name]
            if not self._nodes[before]:
                # ``_present`` holds only ranks in use, so that ``best`` need not skip others.
                del self._present[bisect_left(self._present, self._ranks[before])]
        if number is not None:
            self._numbers[name] = number
            nodes = self._nodes.setdefault(number, {})
            if not nodes:
                insort(self._present, self._ranks[number])
            nodes[name] = None

    def _number(self, rank: NodeRank) -> int:
        number = self._number_of.get(rank)
        if number is None:
            number = self._number_of[rank] = len(self._ranks)
            self._ranks.append(rank)
        return number


class NodeIndexes:
    """Indexes of recently used sizes, over rooms whose owner reports every change."""

    def __init__(self, rooms: Mapping[str, Room]) -> None:
        self._rooms = rooms
        self._ranking = RankingConfig()
        self._indexes: dict[PodDemand, NodeIndex] = {}
        # One shared change log, so that a change costs the same for any number of indexes.
        self._changes: list[str] = []
        self._dropped = 0

    def rank_by(self, ranking: RankingConfig) -> None:
        """Set the ranking."""
        self._ranking = ranking
        self._indexes.clear()

    def changed(self, node: str) -> None:
        """The node's room has changed, or the node is gone."""
        self._changes.append(node)
        if len(self._changes) > MIN_LOG + 2 * len(self._rooms):
            self._forget_half()

    def _forget_half(self) -> None:
        """Drop the older half of the log, and the indexes that have not read it."""
        half = len(self._changes) // 2
        # About every node has changed since: an update would cost as much as a new index.
        self._indexes = {pod: index for pod, index in self._indexes.items() if index.read >= half}
        for index in self._indexes.values():
            index.read -= half
        del self._changes[:half]

    def of(self, pod: PodDemand) -> NodeIndex:
        """The index for pods of that size."""
        # Reinsert it as the newest.
        index = self._indexes.pop(pod, None)
        if index is None or index.preferred != preferred_vcpus(len(self._rooms), self._ranking):
            index = NodeIndex(pod, self._rooms, self._ranking)
        else:
            index.stale |= dict.fromkeys(islice(self._changes, index.read, None))
        index.read = len(self._changes)
        self._indexes[pod] = index
        if len(self._indexes) > MAX_INDEXES:
            # Any but the newest, evenly. Sizes often take turns: then the oldest is the next one needed, and with one
            # size too many every pod would cost an evaluation of all nodes.
            self._dropped += 1
            chosen = crc32(self._dropped.to_bytes(8, "big")) % MAX_INDEXES
            del self._indexes[next(islice(self._indexes, chosen, None))]
        return index
