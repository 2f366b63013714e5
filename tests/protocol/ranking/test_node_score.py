"""Scores of existing nodes: utilization relative to the watermark first, price between equals, then chance."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.ranking.config import ScoreCurve
from protocol.ranking.node_score import (
    NodeRank,
    choose_target,
    extender_score,
    extender_scores,
    fraction,
    percent,
)

CURVE = ScoreCurve()


@dataclass(frozen=True)
class Node:
    """A node with this CPU and memory reserved; both have the same total and watermark."""

    cpu: int
    mem: int
    watermark: int
    total: int
    price: float

    def score(self, curve: ScoreCurve = CURVE) -> int:
        return percent(*(fraction(used, self.watermark, self.total, curve) for used in (self.cpu, self.mem)))

    @property
    def rank(self) -> NodeRank:
        return -self.score(), self.price, 1.0


def use(reserved: int, mem: int | None = None, *, watermark: int = 900, total: int = 1000, price: float = 0.0) -> Node:
    return Node(reserved, reserved if mem is None else mem, watermark, total, price)


@pytest.mark.parametrize(
    ("node", "score"),
    [
        (use(0), 50),
        (use(400), 75),
        (use(800), 100),
        (use(950), 25),
        (use(1000), 0),
        (use(1001, 900), 0),
        (use(400, 950), 25),
        (use(200, watermark=450, total=500), 75),
        (use(700, watermark=700), 100),
        (use(750, watermark=700), 83),
        (use(0, total=0, watermark=0), 0),
    ],
)
def test_score_peaks_on_curve_below_watermark(node: Node, score: int) -> None:
    assert node.score() == score


def test_a_curve_that_peaks_at_zero_spreads() -> None:
    curve = ScoreCurve(empty=1.0, full=0.0, peak=0.0)
    assert [use(filled).score(curve) for filled in (0, 400, 1000)] == [100, 60, 0]


@given(st.integers(0, 1100), st.integers(0, 1100), st.integers(0, 1000), st.integers(1, 2000))
def test_score_is_percentage_or_zero(cpu: int, mem: int, watermark: int, total: int) -> None:
    score = use(cpu, mem, watermark=min(watermark, total), total=total).score()
    assert 0 <= score <= 100
    assert score == 0 or (cpu <= total and mem <= total)


@pytest.mark.parametrize(("score", "expected"), [(0, 0), (1, 1), (4, 1), (14, 1), (15, 2), (75, 8), (100, 10)])
def test_scores_map_to_zero_to_ten(score: int, expected: int) -> None:
    assert extender_score(score) == expected


def test_ties_prefer_best_and_cheapest() -> None:
    nodes = {
        "cheap": use(790, price=1.0),
        "cheap too": use(790, price=1.0),
        "dear": use(790, price=2.0),
        "dearest": use(790, price=3.0),
        "emptier": use(400),
        "nearly full": use(995),
        "nearly full and dear": use(995, price=2.0),
        "full": use(1001),
    }
    ranks = {name: node.rank for name, node in nodes.items()}
    scores = extender_scores(ranks.values())
    assert {name: scores[ranks[name]] for name in nodes} == {
        "cheap": 10,
        "cheap too": 10,
        "dear": 9,
        "dearest": 9,
        "emptier": 8,
        "nearly full": 1,
        "nearly full and dear": 1,
        "full": 0,
    }


def test_unfitness_separates_nodes_of_one_price() -> None:
    fit, unfit = (-100, 1.0, 1.0), (-100, 1.0, 2.0)
    assert extender_scores([unfit, fit]) == {fit: 10, unfit: 9}


def test_target_is_best_node_then_cheapest() -> None:
    nodes = {"empty": use(100), "dear": use(790, price=2.0), "cheap": use(790, price=1.0)}
    ranks = {name: node.rank for name, node in nodes.items()}
    assert choose_target(ranks, Random(1).randint) == "cheap"
    assert choose_target({}, Random(1).randint) is None


def test_equal_targets_are_drawn_evenly() -> None:
    nodes, draw = {name: use(500).rank for name in "abc"}, Random(3).randint
    chosen = Counter(choose_target(nodes, draw) for _ in range(300))
    assert set(chosen) == set("abc")
    assert min(chosen.values()) > 60
