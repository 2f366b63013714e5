"""Rank the options of a request with the shared ranking library, or say why one cannot be ranked (S2.1-S2.7)."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from protocol.ranking.config import RankingConfig
from protocol.ranking.prices import is_estimated, node_price
from protocol.ranking.rank import Option, rank_options
from scheduler_plugin.expander.choice import Judgement, Rank
from scheduler_plugin.expander.scaleup import NodeShape, ScaleUp, ScaleUpOption


def judge(config: RankingConfig, cluster_nodes: Callable[[], int | None], scale_up: ScaleUp) -> Mapping[str, Judgement]:
    """The rank of each option's group, or why it has none.

    A node costs what the table says of its group, its pool or its machine type. If the table has none of these, the
    price of its parts only ranks it among others that the table lacks.
    """
    options: list[Option] = []
    estimates: set[str] = set()
    judged: dict[str, Judgement] = {}
    for offered in scale_up.options:
        shape = scale_up.shapes.get(offered.group)
        why_not = scale_up.problems.get(offered.group) or _flaw(offered, shape)
        if why_not or shape is None:
            judged[offered.group] = why_not
            continue
        # Stands unless a rank replaces it below: the ranking leaves out ranks that are not finite.
        judged[offered.group] = "its rank is no number"
        # The most specific first: the table may name the group, its pool or its machine type.
        names = (offered.group, *shape.price_keys)
        if is_estimated(names, config):
            estimates.add(offered.group)
        pods = tuple([pod.needs for pod in offered.pods])
        price = node_price(names, shape.offers, config)
        options.append(Option(offered.group, offered.nodes, shape.offers, price, pods))
    for ranked in rank_options(options, cluster_nodes(), config):
        group = ranked.option.group
        judged[group] = Rank(group in estimates, ranked.rank)
    return judged


def _flaw(offered: ScaleUpOption, shape: NodeShape | None) -> str:
    if shape is None:
        return "no node of this group was sent"
    if not shape.offers.resources.cpu:
        return "its node has no cpu"
    return "" if offered.nodes else "it would add no nodes"
