from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from protocol.kubernetes.access_reviews import Scope
from protocol.kubernetes.objects import Json
from protocol.messages import ObjectName
from protocol.ranking.config import RankingConfig
from scheduler_plugin.dashboard.core.own_costs import BillInputs, costs, prices_in
from scheduler_plugin.dashboard.core.visibility import ALL, VisibilityFilter
from scheduler_plugin.dashboard.texts import OWN_PRICES, PUBLISHED_PRICES
from scheduler_plugin.history.core.samples import HOUR, VmRecord
from scheduler_plugin.history.core.spans import sample_span
from scheduler_plugin.history.costs.bills import KEYS
from scheduler_plugin.history.costs.prices import Price, PriceList
from scheduler_plugin.history.ports import Period, Usage
from tests.scheduler_plugin.dashboard.made_up_history import HAS, MOST

DAY = Period(0, 24 * HOUR)
PRICES = PriceList(Price(Fraction(1), Fraction(1, 10)), {})
SPACES = ("shop", "bank", "lab")


def material(*names: tuple[str, str, str]) -> BillInputs:
    """VMs as (namespace, name, node), each there for the whole day."""
    facts = [
        VmRecord(ObjectName(space, name), node, "g" if space == "shop" else "", None, MOST)
        for space, name, node in names
    ]
    return BillInputs(DAY, [Usage(each, sample_span(0, 24 * HOUR, HAS)) for each in facts], {}, PRICES, "a table")


def names(found: Any) -> list[str]:
    return [each["name"] for each in found["lines"]]


def test_bill_covers_only_visible_vms() -> None:
    all_of_it = material(("shop", "a", "n1"), ("bank", "b", "n1"), ("bank", "c", "n2"))
    clerk = VisibilityFilter(frozenset({Scope("shop")}))
    assert names(costs(all_of_it, ALL, "namespace")) == ["bank", "shop"]
    assert names(costs(all_of_it, clerk, "namespace")) == ["shop"]
    assert costs(all_of_it, clerk, "node")["total"] == costs(material(("shop", "a", "n1")), ALL, "node")["total"]
    assert names(costs(all_of_it, clerk, "vm", "bank/b")) == []


def test_bill_has_pods_for_readers_of_pods() -> None:
    all_of_it = material(("shop", "a", "n1"), ("shop", "pod/a", "n1"), ("bank", "pod/b", "n1"))
    seen = [VisibilityFilter(frozenset({scope})) for scope in (Scope("shop"), Scope("shop", of_pods=True))]
    assert [names(costs(all_of_it, visibility, "vm")) for visibility in seen] == [["shop/a"], ["shop/pod/a"]]
    assert names(costs(all_of_it, VisibilityFilter(frozenset({Scope(of_pods=True)})), "vm", "bank/pod/b")) == [
        "bank/pod/b"
    ]


def test_one_line_is_that_of_the_whole_bill() -> None:
    found = material(("shop", "a", "n1"), ("bank", "b", "n1"), ("bank", "c", "n2"))
    whole: Any = costs(found, ALL, "vm")
    for line in whole["lines"]:
        assert costs(found, ALL, "vm", line["name"])["lines"] == [line]
    assert (whole["prices"], whole["kept"], whole["others"]) == ("a table", True, 0)


@given(
    st.lists(
        st.tuples(st.sampled_from(SPACES), st.sampled_from("abcdef"), st.sampled_from("xy")), unique_by=lambda e: e[:2]
    )
)
def test_omitted_lines_stay_in_total(given_vms: list[tuple[str, str, str]]) -> None:
    found = material(*given_vms)
    for by in KEYS:
        bill: Any = costs(found, ALL, by, most=2)
        assert len(bill["lines"]) + bill["others"] == len({KEYS[by](each.facts) for each in found.usages})
        assert bill["total"]["reserved_cpu_hours"] == 48 * len(given_vms)


def test_scheduler_prices_are_preferred() -> None:
    told: Json = {"ranking": {"prices": {"cpu": 0.05, "mem_gib": 0.01, "gpu": 0.7}, "node_prices": {"m5": 0.2}}}
    table, whose = prices_in(told)
    assert (table.prices.cpu, table.prices.mem_gib, table.node_prices, whose) == (0.05, 0.01, {"m5": 0.2}, OWN_PRICES)
    usual = RankingConfig().prices
    same: Json = {"ranking": {"prices": {"cpu": usual.cpu, "mem_gib": usual.mem_gib}, "node_prices": {}}}
    assert prices_in(same) == (RankingConfig(), PUBLISHED_PRICES)
    dear: Json = {"ranking": {"prices": {"cpu": "dear", "mem_gib": 1}}}
    negative: Json = {"ranking": {"prices": {"cpu": -1, "mem_gib": 1}}}
    for bad in (None, {}, dear, negative):
        assert prices_in(bad) == (RankingConfig(), PUBLISHED_PRICES)


def test_unused_price_keys_are_shown_for_whole_fleet() -> None:
    found = replace(material(("shop", "a", "n1")), prices=replace(PRICES, unused=("m5.typo",)))
    shown = [
        costs(found, visibility, "vm")["unusedPrices"]
        for visibility in (ALL, VisibilityFilter(frozenset({Scope("shop")})))
    ]
    assert shown == [["m5.typo"], []]
