"""Reservations and use of VMs in a period, with the prices of nodes at that time (S2.1, B.6).

A node name may be reused for a machine with another price. As the history sums all time of a VM on a node name, it is
then queried separately before and after the change.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Final

from protocol.ranking.config import RankingConfig
from scheduler_plugin.history.costs.prices import PriceList, price_changes, price_list, prices_of
from scheduler_plugin.history.ports import History, NodeUsage, Period, Usage

MOST_PARTS: Final = 200
"""Maximum number of parts, each with two queries. Further changes are skipped: the latest price of a part applies."""


async def priced_usage(history: History, period: Period, ranking: RankingConfig) -> tuple[PriceList, list[Usage]]:
    """Prices of all nodes, and usage of VMs in parts of the period without a change of prices.

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
    """Split the period into at most ``most`` parts, each with its nodes.

    Machines that alternate under one name overlap in the result of a query; only queries of shorter parts tell them
    apart.
    """
    changes = price_changes(nodes, ranking, period) if most > 1 else []
    if not changes:
        return [(period, nodes)]
    # Every n-th change, so that there are at most ``most`` parts.
    cuts = changes[:: -(-len(changes) // (most - 1))]
    parts = [Period(since, until) for since, until in pairwise((period.since, *cuts, period.until))]
    return [
        piece
        for part in parts
        # A query of a part may reveal further changes. The recursion ends because each part gets a share of ``most``.
        for piece in await _parts(history, part, await history.node_usage(part), ranking, most // len(parts))
    ]
