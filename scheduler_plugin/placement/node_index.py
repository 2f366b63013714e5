"""Verdicts and ranks of all nodes for pods of one size: kube-scheduler asks about thousands at once (S4.10).

Nothing is decided here: each node's verdict is ``placement``'s, its rank ``protocol.ranking``'s, both by its
present room. An index only remembers them until that room changes.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from itertools import chain, filterfalse, islice
from typing import Final

from protocol.ranking.config import RankingConfig
from protocol.ranking.node_score import NodeRank, extender_scores
from protocol.ranking.rank import preferred_vcpus
from protocol.units import Resources
from scheduler_plugin.placement.scoring import Ranks, node_rank
from scheduler_plugin.placement.verdict import FITS, Filtered, Room, Verdict, sort_out, verdict

# A further size costs one look at every node; each that is kept takes about 200 bytes for a node.
KEPT: Final = 64

LOGGED: Final = 1_000
"""How many changes are remembered at least, and twice as many as there are nodes: then about every one has changed."""

_LAST: Final[NodeRank] = (1, 0.0, 0.0)
"""Sorts behind the rank of every node with room."""


class NodeIndex:
    """Verdict and rank of every known node for pods that claim ``claim``.

    ``stale`` are the nodes to look at again, ``read`` how many changes of the log are among them; ``preferred`` is the
    vCPUs of a node that suits a cluster of this size.
    """

    def __init__(self, claim: Resources, rooms: Mapping[str, Room], ranking: RankingConfig) -> None:
        self.stale = set(rooms)
        self.read = 0
        self._claim = claim
        self._rooms = rooms
        self._curve = ranking.score
        self.preferred = preferred_vcpus(len(rooms), ranking)
        self._verdicts: dict[str, Verdict] = {}
        self._fitting: set[str] = set()
        # Ranks are numbered: a number is hashed faster, and this runs for thousands of nodes.
        self._numbers: dict[str, int] = {}
        self._nodes: dict[int, dict[str, None]] = {}
        self._number_of: dict[NodeRank, int] = {}
        self._ranks: list[NodeRank] = []
        self._present: list[NodeRank] = []

    def filter(self, names: Sequence[str]) -> Filtered:
        """The ``names`` that the pod fits, in their order."""
        self._refresh()
        # In a cluster with room this is the usual case, and it takes no look at single nodes.
        if self._fitting.issuperset(names):
            return Filtered(list(names), {}, {})
        return sort_out(names, self._verdicts)

    def fitting(self) -> frozenset[str] | set[str]:
        """All nodes that the pod fits; do not change them."""
        self._refresh()
        return self._fitting

    def scores(self, names: Sequence[str]) -> list[int]:
        """The extender's score (0..10) of each of ``names``: 0 if the pod does not fit, else at least 1."""
        self._refresh()
        numbers = list(map(self._numbers.get, names))
        ranks = {number: self._ranks[number] for number in set(numbers) if number is not None}
        scores = extender_scores(ranks.values())
        score_of: dict[int | None, int] = {None: 0}
        # 0 is for nodes that do not fit.
        score_of |= {number: max(1, scores[rank]) for number, rank in ranks.items()}
        return list(map(score_of.__getitem__, numbers))

    def best(
        self, asked: Container[str], most: int, taken: Mapping[str, Resources], shuns: Callable[[str], bool], start: int
    ) -> list[str]:
        """The ``most`` most wanted of those ``asked`` nodes that the pod fits.

        ``taken`` is what of a node is about to be claimed beside its reservations; a node that is left without room by
        that is a last resort, and so is one that the pod ``shuns``. Of equals the one at ``start`` is the first.
        """
        self._refresh()
        moved = {name: self._rank_beside(name, claim) for name, claim in taken.items() if name in self._numbers}

        def ranked() -> Iterator[str]:
            for rank in sorted({*self._present, *moved.values()}) if moved else self._present:
                nodes = self._nodes.get(self._number_of.get(rank, -1), {})
                # Of equals each pod begins at another one, so that pods that come together spread.
                turn = start % len(nodes) if nodes else 0
                staying = (name for name in chain(islice(nodes, turn, None), islice(nodes, turn)) if name not in moved)
                coming = sorted(name for name, moved_to in moved.items() if moved_to == rank)
                yield from (name for name in chain(coming, staying) if name in asked)

        # Shunned nodes only if there is no other.
        return list(islice(filterfalse(shuns, ranked()), most)) or list(islice(ranked(), most))

    def _rank_beside(self, name: str, taken: Resources) -> NodeRank:
        room = self._rooms[name]
        # It still fits by what is reserved, so it stays in the list, as the last resort.
        if not (self._claim + taken).within(room.free):
            return _LAST
        return node_rank(room, self._claim + taken, self._curve, self.preferred)

    def _refresh(self) -> None:
        if not self.stale:
            return
        ranks = Ranks(self._claim, self._curve, self.preferred)
        for name in self.stale:
            room = self._rooms.get(name)
            self._verdicts[name] = verdict(room, self._claim)
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
                # ``_present`` holds only ranks that some node has, so that ``best`` need not walk over past ones.
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
    """The indexes of the sizes that were asked for last, over rooms whose owner reports every change."""

    def __init__(self, rooms: Mapping[str, Room]) -> None:
        self._rooms = rooms
        self._ranking = RankingConfig()
        self._kept: dict[Resources, NodeIndex] = {}
        # One log for all indexes: a change costs the same however many there are. Each knows how much it has read.
        self._changes: list[str] = []

    def rank_by(self, ranking: RankingConfig) -> None:
        """Rank nodes by ``ranking`` from now on."""
        self._ranking = ranking
        self._kept.clear()

    def changed(self, node: str) -> None:
        """The node's room has changed, or the node is gone."""
        self._changes.append(node)
        if len(self._changes) > LOGGED + 2 * len(self._rooms):
            self._forget_half()

    def _forget_half(self) -> None:
        """Forgets the older half of the log, and the indexes that have not read it."""
        half = len(self._changes) // 2
        # About every node has changed since they were asked for: bringing them up to date would cost as much.
        self._kept = {claim: index for claim, index in self._kept.items() if index.read >= half}
        for index in self._kept.values():
            index.read -= half
        del self._changes[:half]

    def of(self, claim: Resources) -> NodeIndex:
        """The index for pods that claim ``claim``."""
        # Popped and put back: the order of the dictionary is that of the last use.
        index = self._kept.pop(claim, None)
        if index is None or index.preferred != preferred_vcpus(len(self._rooms), self._ranking):
            index = NodeIndex(claim, self._rooms, self._ranking)
        else:
            index.stale.update(islice(self._changes, index.read, None))
        index.read = len(self._changes)
        self._kept[claim] = index
        if len(self._kept) > KEPT:
            del self._kept[next(iter(self._kept))]
        return index
