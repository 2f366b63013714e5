"""Scores for kube-scheduler, and node indexes that must always agree with a fresh one (S4.10, S2.8b)."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.ranking.config import PreferredSize, RankingConfig, ScoreCurve
from protocol.units import Resources
from scheduler_plugin.placement.node_index import MAX_INDEXES, MIN_LOG, NodeIndex, NodeIndexes
from scheduler_plugin.placement.scoring import PodDemand
from scheduler_plugin.placement.verdict import FITS, Room, filter_nodes, verdict
from tests.scheduler_plugin.ledger.fleet import amount


def room(
    reserved: Resources, *, total: float = 10, watermark: float = 8, price: float = 0.0, is_open: bool = True
) -> Room:
    whole = amount(total)
    return Room("n", whole, reserved, whole.minus_or_zero(reserved), amount(watermark), is_open, price)


def scores(rooms: dict[str, Room], claim: Resources, ranking: RankingConfig | None = None) -> dict[str, int]:
    found = NodeIndex(PodDemand(claim), rooms, ranking or RankingConfig()).scores(list(rooms))
    return dict(zip(rooms, found, strict=True))


@pytest.mark.parametrize(
    ("reserved", "expected"),
    [
        (amount(0), 6),
        (amount(3), 8),
        (amount(7), 10),
        (amount(8), 5),
        (amount(9), 1),
        (amount(9.5), 0),
        (amount(7, 8), 5),
        (amount(8, 7), 5),
    ],
)
def test_node_scores_best_at_watermark(reserved: Resources, expected: int) -> None:
    assert scores({"n": room(reserved)}, amount(1)) == {"n": expected}


def test_utilisation_decides_before_price_and_price_before_fit() -> None:
    rooms = {
        "fuller": room(amount(6), price=9.0),
        "dear": room(amount(5.8), price=2.0),
        "emptier": room(amount(0), price=0.5),
    }
    assert scores(rooms, amount(1)) == {"fuller": 9, "dear": 8, "emptier": 6}
    assert scores({"dear": room(amount(5), price=2.0), "cheap": room(amount(5), price=1.0)}, amount(1)) == {
        "dear": 8,
        "cheap": 9,
    }
    rooms = {"small": room(amount(4), total=10), "large": room(amount(9), total=20, watermark=16)}
    prefers_large = RankingConfig(preferred_sizes=(PreferredSize(vcpus=20),))
    assert scores(rooms, amount(1), prefers_large) == {"small": 7, "large": 8}


def test_the_curve_is_the_settings() -> None:
    spreading = RankingConfig(score=ScoreCurve(empty=1.0, full=0.0, peak=0.0))
    assert scores({"a": room(amount(0)), "b": room(amount(5))}, amount(1), spreading) == {"a": 9, "b": 4}


def test_equal_nodes_score_equally() -> None:
    assert scores({"a": room(amount(3)), "b": room(amount(3))}, amount(1)) == {"a": 8, "b": 8}


def test_unknown_and_closed_nodes_score_nothing() -> None:
    index = NodeIndex(PodDemand(amount(1)), {"closed": room(amount(0), is_open=False)}, RankingConfig())
    assert index.scores(["closed", "unknown"]) == [0, 0]


def test_new_rules_count_at_once() -> None:
    rooms = {"a": room(amount(1)), "b": room(amount(6))}
    node_indexes = NodeIndexes(rooms)
    assert node_indexes.of(PodDemand(amount(1))).scores(["a", "b"]) == [6, 9]
    node_indexes.rank_by(RankingConfig(score=ScoreCurve(empty=1.0, full=0.0, peak=0.0)))
    assert node_indexes.of(PodDemand(amount(1))).scores(["a", "b"]) == [8, 3]


def test_a_cluster_that_grows_prefers_larger_nodes() -> None:
    rooms = {"small": room(amount(4)), "large": room(amount(9), total=20, watermark=16)}
    ranking = RankingConfig(preferred_sizes=(PreferredSize(nodes=2, vcpus=10), PreferredSize(vcpus=20)))
    node_indexes = NodeIndexes(rooms)
    node_indexes.rank_by(ranking)
    assert node_indexes.of(PodDemand(amount(1))).scores(["small", "large"]) == [8, 7]
    rooms["third"] = room(amount(10))
    node_indexes.changed("third")
    assert node_indexes.of(PodDemand(amount(1))).scores(["small", "large"]) == [7, 8]


def test_long_log_drops_unused_indexes() -> None:
    """Two sizes are asked for; then the room of a node changes so often that the log is cut twice."""
    rooms = {"a": room(amount(1)), "b": room(amount(1))}
    node_indexes = NodeIndexes(rooms)
    used, unused = node_indexes.of(PodDemand(amount(1))), node_indexes.of(PodDemand(amount(2)))
    for number in range(4 * MIN_LOG):
        rooms["a"] = room(amount(number % 9))
        node_indexes.changed("a")
        if number % 100 == 0:
            node_indexes.of(PodDemand(amount(1)))
    assert node_indexes.of(PodDemand(amount(1))) is used
    assert node_indexes.of(PodDemand(amount(2))) is not unused
    for claim in (amount(1), amount(2)):
        fresh = NodeIndex(PodDemand(claim), rooms, RankingConfig())
        assert node_indexes.of(PodDemand(claim)).scores(["a", "b"]) == fresh.scores(["a", "b"])


NODES = st.sampled_from(["a", "b", "c"])
PARTS = st.integers(0, 12)
ROOMS = st.none() | st.builds(
    lambda reserved, watermark, is_open: room(amount(*reserved), watermark=watermark, is_open=is_open),
    st.tuples(PARTS, PARTS),
    st.integers(0, 10),
    st.booleans(),
)


@given(changes=st.lists(st.tuples(NODES, ROOMS, st.tuples(PARTS, PARTS))))
def test_cached_index_matches_fresh_one(
    changes: list[tuple[str, Room | None, tuple[int, int]]],
) -> None:
    rooms: dict[str, Room] = {}
    node_indexes, names = NodeIndexes(rooms), ["c", "unknown", "a", "b"]
    for name, found, size in changes:
        rooms.pop(name, None)
        if found is not None:
            rooms[name] = found
        node_indexes.changed(name)
        claim = amount(*size)
        kept = node_indexes.of(PodDemand(claim))
        assert kept.filter(names) == filter_nodes(rooms, names, claim)
        assert kept.scores(names) == NodeIndex(PodDemand(claim), rooms, RankingConfig()).scores(names)
        fits = [verdict(rooms.get(each), claim) is FITS for each in names]
        assert [1 <= score <= 10 for score in kept.scores(names)] == fits
        best = kept.best(names, len(names), {}, lambda _: False, 0)
        assert sorted(best) == sorted(name for name, does in zip(names, fits, strict=True) if does)
        assert kept.scores(best) == sorted(kept.scores(best), reverse=True)


@pytest.mark.parametrize(("more", "kept"), [(1, 0.9), (8, 0.6), (32, 0.3)])
def test_more_sizes_lose_few_indexes(more: int, kept: float) -> None:
    """In turns, the least recently used index is always the next one needed: without it all would be built again."""
    indexes = NodeIndexes({})
    sizes = [PodDemand(amount(number + 1)) for number in range(MAX_INDEXES + more)]
    rounds = [[indexes.of(size) for size in sizes] for _ in range(20)]
    found = [one is other for before, after in pairwise(rounds) for one, other in zip(before, after, strict=True)]
    assert found.count(True) / len(found) > kept
