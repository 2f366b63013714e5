"""The rank of every option of a question, by the shared ranking library, or why it has none (S2.1-S2.7)."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from protocol.ranking.config import RankingConfig
from protocol.ranking.prices import node_price
from protocol.ranking.rank import Option, rank_options
from scheduler_plugin.expander.choice import Judgement
from scheduler_plugin.expander.scaleup import NodeShape, ScaleUp, ScaleUpOption


def judge(config: RankingConfig, cluster_nodes: Callable[[], int | None], scale_up: ScaleUp) -> Mapping[str, Judgement]:
    """Every option's group with its rank (lower is better) or with why it has none.

    A node's price is the table's for the group or the machine type, otherwise that of its parts.
    """
    options: list[Option] = []
    judged: dict[str, Judgement] = {}
    for offered in scale_up.options:
        shape = scale_up.shapes.get(offered.group)
        why_not = scale_up.problems.get(offered.group) or _flaw(offered, shape)
        if why_not or shape is None:
            judged[offered.group] = why_not
            continue
        judged[offered.group] = "its rank is no number"
        price = node_price((offered.group, shape.machine), shape.offers, config)
        pods = tuple([pod.needs for pod in offered.pods])
        options.append(Option(offered.group, offered.nodes, shape.offers, price, pods))
    judged |= {ranked.option.group: ranked.rank for ranked in rank_options(options, cluster_nodes(), config)}
    return judged


def _flaw(offered: ScaleUpOption, shape: NodeShape | None) -> str:
    if shape is None:
        return "no node of this group was sent"
    if not shape.offers.resources.cpu:
        return "its node has no cpu"
    return "" if offered.nodes else "it would add no nodes"
