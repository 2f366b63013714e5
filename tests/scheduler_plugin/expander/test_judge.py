"""Options are ranked by the shared library, and an option without a rank has a reason."""

from __future__ import annotations

from dataclasses import replace

import pytest

from protocol.ranking.config import Damper, RankingConfig
from protocol.ranking.prices import Needs
from protocol.units import Resources
from scheduler_plugin.expander.choice import Rank, judge
from scheduler_plugin.expander.scaleup import NodeShape, PodNeeds, ScaleUp, ScaleUpOption

POD = PodNeeds("p", Needs(Resources.parse("1500m", "1Gi")))
SMALL = NodeShape(("small",), Needs(Resources.parse(2, "8Gi")))
LARGE = NodeShape(("large",), Needs(Resources.parse(8, "32Gi")))
PRICES = {"small": 0.1, "large": 0.4}


def ranked(nodes: int | None, config: RankingConfig, **shapes: NodeShape) -> list[str]:
    options = tuple(ScaleUpOption(group, 1, (POD,)) for group in shapes)
    judged = judge(config, lambda: nodes, ScaleUp(options, shapes, {}))
    ranks = {group: rank for group, rank in judged.items() if isinstance(rank, Rank)}
    return sorted(ranks, key=ranks.__getitem__)


def test_cluster_size_decides_preferred_node() -> None:
    config = RankingConfig(node_prices=PRICES)
    assert ranked(4, config, a=SMALL, b=LARGE) == ["a", "b"]
    assert ranked(70, config, a=SMALL, b=LARGE) == ["b", "a"]


def test_unknown_size_ranks_by_price() -> None:
    assert ranked(None, RankingConfig(node_prices=PRICES), b=LARGE, a=SMALL) == ["a", "b"]


def test_group_price_precedes_machine_price() -> None:
    config = RankingConfig(node_prices={**PRICES, "spot": 0.01})
    assert ranked(4, config, a=SMALL, spot=SMALL) == ["spot", "a"]


def test_local_storage_is_priced() -> None:
    """The second group is not in the price table, so that its price is that of its parts."""
    config = RankingConfig(node_prices={"small": 0.1})
    scratch = PodNeeds("s", Needs(Resources.parse("1500m", "1Gi"), storage_gb=500.0))
    shapes = {"a": SMALL, "b": NodeShape((), Needs(Resources.parse(2, "8Gi"), storage_gb=500.0))}
    judged = {
        pod.key: judge(
            config, lambda: 6, ScaleUp(tuple(ScaleUpOption(group, 1, (pod,)) for group in shapes), shapes, {})
        )
        for pod in (POD, scratch)
    }
    damper, pod, node = 0.018757898, 0.054207, 0.101916

    def rank(is_estimated: bool, paid: float, perfect: float) -> tuple[bool, object]:
        return is_estimated, pytest.approx((paid + damper) / (perfect + damper))

    assert judged == {
        "p": {"a": rank(False, 0.1, pod), "b": rank(True, node + 0.1, pod)},
        "s": {"a": rank(False, 0.1, pod + 0.1), "b": rank(True, node + 0.1, pod + 0.1)},
    }


def test_whoever_cannot_be_ranked_is_told_why() -> None:
    options = tuple(ScaleUpOption(group, count, (POD,)) for group, count in (("a", 1), ("b", 0), ("c", 1), ("d", 1)))
    options += (ScaleUpOption("e", 1, ()),)
    shapes = {"a": SMALL, "b": SMALL, "c": NodeShape((), Needs(Resources.parse(0, 1))), "e": SMALL}
    free = RankingConfig(damper=Damper(cpu=0, mem_mib=0))
    assert judge(free, lambda: 1, ScaleUp(options, shapes, {"a": "a pod cannot be read"})) == {
        "a": "a pod cannot be read",
        "b": "it would add no nodes",
        "c": "its node has no CPU",
        "d": "the call has no node of this group",
        "e": "its rank is not a number",
    }


def test_plain_pod_avoids_unpriced_accelerators() -> None:
    """Their parts are as cheap as those of a plain node, if only GPUs are counted."""
    for config in (RankingConfig(), RankingConfig(node_prices={"large": 0.4})):
        assert ranked(4, config, mig=NodeShape(("g",), replace(SMALL.offers, gpus=7)), plain=LARGE)[0] == "plain"


def test_type_missing_in_yen_table_comes_last() -> None:
    """Its parts are priced in dollars, which is a hundredth of what any node of the table costs."""
    yen = RankingConfig(node_prices={"large": 60.0, "pool": 70.0})
    unlisted = NodeShape(("other",), SMALL.offers)
    assert ranked(4, yen, b=unlisted, a=LARGE, c=NodeShape(("pool", "other"), SMALL.offers)) == ["c", "a", "b"]


def test_spot_and_on_demand_of_one_type_differ() -> None:
    config = RankingConfig(node_prices={"small": 0.1, "small/spot": 0.03})
    assert ranked(4, config, a=SMALL, b=NodeShape(("small/spot", "small"), SMALL.offers)) == ["b", "a"]
