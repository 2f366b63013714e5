"""Reservations and use of VMs in a period, with the prices of nodes at that time (S2.1, B.6).

A node name may be reused for a machine of another price. The history is then queried separately before and after,
because it sums all time of a VM on a node name.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Final

from protocol.ranking.config import RankingConfig
from scheduler_plugin.history.costs.prices import PriceList, price_changes, price_list, prices_of
from scheduler_plugin.history.ports import History, NodeUsage, Period, Usage

MOST_PARTS: Final = 200
"""Each part takes two queries. Beyond this many some changes are skipped: the latest price of a part then counts."""


async def priced_usage(history: History, period: Period, ranking: RankingConfig) -> tuple[PriceList, list[Usage]]:
    """Prices of all nodes, and use of VMs, in parts within which no price changes.

    Raises ``HistoryError``.
    """
    nodes = await history.node_usage(period)
    parts = await _parts(history, period, nodes, ranking, MOST_PARTS)
    usages = [usage for part, _ in parts for usage in await history.usage(part)]
    prices = [(part.since, prices_of(part_nodes, ranking)) for part, part_nodes in parts]
    # A single part has the list's prices.
    return price_list(nodes, ranking, prices if len(prices) > 1 else ()), usages


async def _parts(
    history: History, period: Period, nodes: Sequence[NodeUsage], ranking: RankingConfig, most: int
) -> list[tuple[Period, Sequence[NodeUsage]]]:
    """The period in at most ``most`` parts, with the nodes of each.

    Machines that alternate under one name overlap in time; only queries of shorter parts separate them.
    """
    changes = price_changes(nodes, ranking, period) if most > 1 else []
    if not changes:
        return [(period, nodes)]
    # Every n-th change, for at most ``most`` parts.
    cuts = changes[:: -(-len(changes) // (most - 1))]
    parts = [Period(since, until) for since, until in pairwise((period.since, *cuts, period.until))]
    return [
        piece
        for part in parts
        # A query of a part may reveal changes that overlapped before; its share of ``most`` bounds the recursion.
        for piece in await _parts(history, part, await history.node_usage(part), ranking, most // len(parts))
    ]
