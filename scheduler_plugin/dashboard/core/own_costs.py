"""Costs of the VMs that a user may see, as in ``autoscale cost``, for the page. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from protocol.kubernetes.objects import Json, child, items
from protocol.messages import ObjectName
from protocol.ranking.config import RankingConfig, RankingConfigError, parse_ranking
from scheduler_plugin.dashboard import texts
from scheduler_plugin.dashboard.core.visibility import VisibilityFilter
from scheduler_plugin.databases import scope_of
from scheduler_plugin.history.core.samples import DAY, HOUR, MINUTE, SECOND, Size
from scheduler_plugin.history.costs.bills import bill, key_of
from scheduler_plugin.history.costs.prices import PriceList
from scheduler_plugin.history.costs.rendering import document
from scheduler_plugin.history.ports import Period, Usage

SPANS: Final = frozenset(span // SECOND for span in (15 * MINUTE, HOUR, 6 * HOUR, DAY, 7 * DAY, 30 * DAY))
"""Allowed periods in seconds; few, because each is computed once for all users."""
HIGH: Final = 0.995
"""Fraction of the time for which the second fixed size is enough, as in ``autoscale cost``."""
MOST_LINES: Final = 200
NOT_KEPT: Final[Json] = {"kept": False, "lines": [], "others": 0}
"""Response without a readable history."""


@dataclass(frozen=True, slots=True)
class BillInputs:
    """Inputs of all bills of one period; ``prices_from`` is the source of the prices."""

    period: Period
    usages: Sequence[Usage]
    high: Mapping[ObjectName, Size]
    prices: PriceList
    prices_from: str


def costs(inputs: BillInputs, visibility: VisibilityFilter, by: str, only: str = "", most: int = MOST_LINES) -> Json:
    """The bill grouped by ``by`` (see ``key_of``), or only its line ``only``.

    It has the ``most`` most expensive lines and the number of ``others``. Raises ``ValueError`` for an unknown ``by``.
    """
    # Before summing, so that no sum reveals a hidden database.
    visible = [usage for usage in inputs.usages if visibility.sees(scope_of(usage.facts.vm))]
    bill_json = document(bill(visible, inputs.high, inputs.prices, key_of(by), inputs.period, only=only), by)
    lines = items(bill_json, "lines")
    others = max(0, len(lines) - most)
    # Keys of the price table are names of machines of the whole fleet.
    if not visibility.has_all_vms:
        bill_json["unusedPrices"] = []
    return {**bill_json, "kept": True, "lines": lines[:most], "others": others, "prices": inputs.prices_from}


def prices_in(settings: Json | None) -> tuple[RankingConfig, str]:
    """The price table in the scheduler's ``/settings`` response, or else the published one, and its source.

    >>> prices_in(None)[1]
    'the published reference prices'
    """
    ranking = child(settings or {}, "ranking")
    prices = child(ranking, "prices")
    reported = {"cpu": prices.get("cpu"), "memGib": prices.get("mem_gib")}
    try:
        table = parse_ranking({"prices": reported, "nodePrices": child(ranking, "node_prices")})
    # The scheduler may be of another release. The page says which prices are used.
    except RankingConfigError:
        return RankingConfig(), texts.PUBLISHED_PRICES
    return table, texts.PUBLISHED_PRICES if table == RankingConfig() else texts.OWN_PRICES
