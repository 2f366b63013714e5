"""Ranks of expansions: the seed's worked examples, and what must hold for any."""

from __future__ import annotations

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.ranking.config import RankingConfig
from protocol.ranking.prices import MIB, Needs, damper_price, node_price, perfect_price
from protocol.ranking.rank import (
    Option,
    preferred_vcpus,
    rank_options,
    suppress,
    unfitness,
)
from protocol.units import Bytes, MilliCpu, Resources
from tests.protocol.ranking.best_options import best_options

CONFIG = RankingConfig(node_prices={"n1-standard-2": 0.095, "n1-standard-8": 0.38, "n1-standard-2-gpu": 0.795})


def needs(cpu: str, gib: int = 0, gpus: int = 0, storage_gb: float = 0.0) -> Needs:
    return Needs(Resources(MilliCpu.parse(cpu), Bytes(gib * 1024 * MIB)), gpus, storage_gb)


def option(group: str, cpu: str, count: int, pods: list[Needs], gpus: int = 0) -> Option:
    node = needs(cpu, 0, gpus)
    return Option(group, count, node, node_price((group,), node, CONFIG), tuple(pods))


def test_pod_price_is_perfect_machine_price() -> None:
    assert perfect_price(needs("2", 4, 1, 100), CONFIG) == pytest.approx(2 * 0.033174 + 4 * 0.004446 + 0.7 + 0.02)
    assert damper_price(CONFIG) == pytest.approx(0.5 * 0.033174 + 500 / 1024 * 0.004446)


def test_node_price_prefers_table_over_parts() -> None:
    node = needs("2", 8)
    assert [node_price(names, node, CONFIG) for names in (("g", "n1-standard-2"), ("n1-standard-8", "g"), ("g",))] == [
        0.095,
        0.38,
        perfect_price(node, CONFIG),
    ]


def test_small_pod_avoids_idle_gpu() -> None:
    pods = [needs("100m")]
    options = [
        option("n1-standard-2", "2", 1, pods),
        option("n1-standard-2-gpu", "2", 1, pods, gpus=1),
        option("n1-standard-8", "8", 1, pods),
    ]
    ranked = rank_options(options, cluster_nodes=60, config=CONFIG)
    assert [one.option.group for one in ranked] == ["n1-standard-8", "n1-standard-2", "n1-standard-2-gpu"]
    assert [one.unfitness for one in ranked] == [1, 4, 1000]


def test_one_pod_per_node_uses_small_nodes() -> None:
    pods = [needs("1500m")] * 50
    options = [option("n1-standard-8", "8", 50, pods), option("n1-standard-2", "2", 50, pods)]
    assert rank_options(options, 60, CONFIG)[0].option.group == "n1-standard-2"


def test_requested_gpu_is_no_waste() -> None:
    ranked = rank_options([option("n1-standard-2-gpu", "2", 1, [needs("1", gpus=1)], gpus=1)], 3, CONFIG)
    assert ranked[0].unfitness == 1


def test_unusable_options_are_dropped() -> None:
    pods = (needs("1"),)
    options = [
        Option("no price", 1, needs("1"), None, pods),
        Option("no size", 1, needs("0"), 1.0, pods),
        Option("no nodes", 0, needs("1"), 1.0, pods),
        Option("endless", 1, needs("1"), inf, pods),
        Option("good", 1, needs("1"), 1.0, pods),
    ]
    assert [one.option.group for one in rank_options(options, 1, CONFIG)] == ["good"]


def test_new_group_doubles_the_rank() -> None:
    pods = (needs("1"),)
    old, new = Option("old", 1, needs("1"), 1.0, pods), Option("new", 1, needs("1"), 1.0, pods, exists=False)
    ranked = rank_options([new, old], 1, CONFIG)
    assert [one.option.group for one in ranked] == ["old", "new"]
    assert ranked[1].rank == 2 * ranked[0].rank


def test_equal_options_are_all_best() -> None:
    one, two = (Option(name, 1, needs("1"), 1.0, (needs("1"),)) for name in ("a", "b"))
    worse = Option("c", 2, needs("1"), 1.0, (needs("1"),))
    assert best_options(rank_options([worse, one, two], 1, CONFIG)) == [one, two]
    assert best_options([]) == []


@pytest.mark.parametrize(
    ("nodes", "vcpus"),
    [(1, 1), (2, 1), (3, 2), (6, 2), (7, 4), (20, 4), (21, 8), (80, 8), (81, 16), (300, 16), (301, 32), (10**6, 32)],
)
def test_the_preferred_size_grows_with_the_cluster(nodes: int, vcpus: float) -> None:
    assert preferred_vcpus(nodes, CONFIG) == vcpus


@given(st.floats(0.1, 512), st.floats(0.1, 512), st.integers(-5, 10_000), st.integers(1, 100))
def test_suppression_falls_with_count(preferred: float, node: float, count: int, more: int) -> None:
    unfit = unfitness(preferred, node)
    fewer, most = suppress(unfit, count, 15.0), suppress(unfit, count + more, 15.0)
    assert 1 <= most <= fewer <= unfit * (1 + 1e-12)
    assert suppress(unfit, 1, 15.0) == pytest.approx(unfit)
