"""Bills agree with an independent integral over the samples, and every sum of parts is its whole."""

from __future__ import annotations

import csv
import io
from fractions import Fraction
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.messages import ObjectName
from protocol.ranking.config import Prices, RankingConfig
from scheduler_plugin.history.core.accumulation import Accumulation, SpanPace
from scheduler_plugin.history.core.samples import HOUR, SECOND, NodeRecord, Row, Size, VmRecord
from scheduler_plugin.history.core.spans import joined, sample_span
from scheduler_plugin.history.costs.bills import Bill, BilledCost, Line, bill, key_of
from scheduler_plugin.history.costs.opencost import UNALLOCATED, allocations
from scheduler_plugin.history.costs.prices import Price, PriceList, price_list, reference_price
from scheduler_plugin.history.costs.rendering import as_csv, document, figures, rounded
from scheduler_plugin.history.ports import NodeUsage, Period, Usage

GIB = 1024**2
NODE = Size(4000, 16 * GIB)
MOST = Size(8000, 16 * GIB)
RESERVED = Size(2000, 4 * GIB)
DAY_ONE = Period(0, 24 * HOUR)
PRICES = PriceList(Price(Fraction(1), Fraction(1, 10)), {"n2": Price(Fraction(2), Fraction(1, 5))})
BY = ("vm", "namespace", "group", "node", "label=team")


def facts(name: str = "db", node: str = "n1", most: Size | None = MOST, **more: str) -> VmRecord:
    labels = tuple(sorted(more.items()))
    return VmRecord(ObjectName("default", name), node, "shop" if name == "db" else "", None, most, labels)


def row(reserved: Size, used: Size) -> Row:
    return (*[reserved.cpu, reserved.mem] * 4, used.cpu, used.mem)


def usage(of: VmRecord, hours: float = 1, reserved: Size = RESERVED, since: int = 0) -> Usage:
    used = Size(reserved.cpu // 2, reserved.mem // 2)
    return Usage(of, sample_span(since, since + round(hours * HOUR), row(reserved, used)))


def test_vm_cost_and_savings() -> None:
    found = bill([usage(facts())], {ObjectName("default", "db"): Size(3000, 5 * GIB)}, PRICES, key_of("vm"), DAY_ONE)
    line = Line(
        reserved=BilledCost(Fraction(2), Fraction(4), Fraction(2), Fraction(4, 10)),
        used=BilledCost(Fraction(1), Fraction(2), Fraction(1), Fraction(2, 10)),
        in_use=BilledCost(Fraction(2), Fraction(4), Fraction(2), Fraction(4, 10)),
        at_most=BilledCost(Fraction(8), Fraction(16), Fraction(8), Fraction(16, 10)),
        at_high=BilledCost(Fraction(3), Fraction(5), Fraction(3), Fraction(5, 10)),
        known_hours=Fraction(1),
        use_known=Fraction(1),
        since=0,
        until=HOUR,
    )
    assert found == Bill(DAY_ONE, {"default/db": line}, line, ("n1",))
    assert (line.saved, line.saved_of_high) == (Fraction(72, 10), Fraction(11, 10))


def test_sleep_saves_the_minimum() -> None:
    """A VM slept for two of three hours. Its permit was lowered half an hour late, which saves as much less."""
    awake = facts()
    awake = msgspec.structs.replace(awake, least=Size(1000, 2 * GIB))
    asleep = msgspec.structs.replace(awake, asleep=True)
    late, gone = usage(asleep, 0.5, since=HOUR), usage(asleep, 1.5, Size(0, 0), since=3 * HOUR // 2)
    total = bill([usage(awake), late, gone], {}, PRICES, key_of("vm"), DAY_ONE).total
    assert total.asleep == 2
    assert total.slept.money == 2 * (1 + Fraction(2, 10)) - Fraction(1, 2) * (2 + Fraction(4, 10))
    assert total.reserved.money == Fraction(3, 2) * (2 + Fraction(4, 10))
    unknown = bill([usage(msgspec.structs.replace(asleep, least=None))], {}, PRICES, key_of("vm"), DAY_ONE).total
    assert (unknown.asleep, unknown.slept) == (Fraction(1), BilledCost())


def test_hours_are_priced_by_node() -> None:
    found = bill([usage(facts()), usage(facts(node="n2"), since=HOUR)], {}, PRICES, key_of("node"), DAY_ONE)
    assert {name: line.reserved.money for name, line in found.lines.items()} == {
        "n1": Fraction(24, 10),
        "n2": Fraction(48, 10),
    }
    assert found.unpriced == ("n1",)


def test_unplaced_vm_names_no_node() -> None:
    assert bill([usage(facts(node=""))], {}, PRICES, key_of("node"), DAY_ONE).unpriced == ()


def test_unseen_time_is_free_and_reported() -> None:
    found = bill([usage(facts()), usage(facts(node="n2"), since=3 * HOUR)], {}, PRICES, key_of("vm"), DAY_ONE)
    assert (found.total.known_hours, found.total.unknown) == (Fraction(2), Fraction(2))
    unseen = Usage(facts(most=None), sample_span(0, HOUR, (1000, GIB, *[None] * 8)))
    found = bill([unseen], {}, PRICES, key_of("vm"), DAY_ONE)
    assert (found.total.known_hours, found.total.unknown) == (Fraction(0), Fraction(1))
    assert found.total.at_most == BilledCost()


def test_recreated_vm_has_no_gap() -> None:
    lives = [usage(facts()), usage(msgspec.structs.replace(facts(), uid="another"), since=100 * HOUR)]
    found = bill(lives, {}, PRICES, key_of("vm"), DAY_ONE)
    assert (found.total.known_hours, found.total.unknown) == (Fraction(2), Fraction(0))


def test_no_maximum_means_no_savings() -> None:
    high = {ObjectName("default", "db"): Size(3000, 5 * GIB)}
    pair = [usage(facts()), usage(facts("web", most=None))]
    found = bill(pair, high, PRICES, key_of("vm"), DAY_ONE)
    db, web = found.lines["default/db"], found.lines["default/web"]
    assert (web.saved, web.saved_of_high) == (Fraction(0), Fraction(0))
    assert (
        (found.total.saved, found.total.saved_of_high)
        == (db.saved, db.saved_of_high)
        == (Fraction(72, 10), Fraction(11, 10))
    )


def test_unknown_is_not_zero() -> None:
    row = (None, None, None, None, None, None, 2000, 4 * GIB, None, None)
    unseen = Usage(facts("web", most=None), sample_span(0, HOUR, row))
    found = bill([unseen, usage(facts())], {ObjectName("default", "db"): RESERVED}, PRICES, key_of("vm"), DAY_ONE)
    web = figures(found.lines["default/web"])
    unknown = {name for name, number in web.items() if number is None}
    assert unknown == {name for name in web if name.startswith(("used_", "max_", "p99_5_", "saved"))}
    assert None not in figures(found.total).values()
    assert None not in figures(Line()).values()
    assert "\ndefault/web,2.0,4.0,,,,,,,2.4,,,,,,1.0,0.0,0.0,0.0,0.0,0.0\n" in as_csv(found)


def test_returning_vm_keeps_one_line() -> None:
    stays = [usage(facts(node=node), since=at * HOUR) for at, node in enumerate(("n1", "n2", "n1"))]
    whole = bill(stays, {}, PRICES, key_of("node"), DAY_ONE)
    for node, line in whole.lines.items():
        alone = bill(stays, {}, PRICES, key_of("node"), DAY_ONE, only=node)
        assert (alone.lines, alone.total) == ({node: line}, line)
    unseen = [*stays, usage(facts(node="n2"), since=9 * HOUR)]
    assert bill(unseen, {}, PRICES, key_of("node"), DAY_ONE, only="n1").total.unknown == 0
    assert bill(unseen, {}, PRICES, key_of("node"), DAY_ONE, only="n2").total.unknown == 6


def test_nodes_cost_what_their_instance_type_costs() -> None:
    table = RankingConfig(node_prices={"m5": 0.5})
    total = sample_span(0, HOUR, (4000, 16 * GIB, 0, 0, 0, 0, None, None))
    nodes = [NodeUsage(NodeRecord("n1", "m5"), total), NodeUsage(NodeRecord("n2", "unknown"), total)]
    found = price_list(nodes, table)
    assert (found.on("n1").of(Size(4000, 16 * GIB)), found.on("n2")) == (Fraction(1, 2), reference_price(table))
    assert price_list(nodes, RankingConfig(node_prices={"m5": 0.0})).on("n1").of(Size(1, 1)) == 0


@pytest.mark.parametrize("keys", [("spot-pool", "m5"), ("m5/spot", "m5")])
def test_spot_nodes_cost_what_their_own_key_says(keys: tuple[str, ...]) -> None:
    table, total = (
        RankingConfig(node_prices={"m5": 0.5, keys[0]: 0.1}),
        sample_span(0, HOUR, (4000, 16 * GIB, *[0] * 6)),
    )
    found = price_list([NodeUsage(NodeRecord("n1", "m5"), total), NodeUsage(NodeRecord.of("n2", keys), total)], table)
    assert [found.on(node).of(NODE) for node in ("n1", "n2")] == [Fraction(1, 2), Fraction(1, 10)]
    assert found.unused == ()


def test_default_table_splits_node_price() -> None:
    free = RankingConfig(prices=Prices(cpu=0, mem_gib=0), node_prices={"m5": 0.5})
    found = price_list([node_usage("m5", 0)], free)
    assert (found.on("n1").of(Size(4000, 16 * GIB)), found.on("n2").of(Size(4000, 16 * GIB))) == (
        Fraction(1, 2),
        Fraction(0),
    )
    assert price_list([node_usage("m5", 0, Size(0, 0))], free).by_node == {}


def test_replaced_node_has_new_price() -> None:
    table, size = RankingConfig(node_prices={"m5": 0.5, "m6": 0.7}), Size(4000, 16 * GIB)
    for seen in ([node_usage("m5", HOUR), node_usage("m6", 0)], [node_usage("m6", 0), node_usage("m5", HOUR)]):
        assert price_list(seen, table).on("n1").of(size) == Fraction(1, 2)


def node_usage(machine: str, since: int, size: Size = NODE) -> NodeUsage:
    return NodeUsage(
        NodeRecord("n1", machine), sample_span(since, since + HOUR, (size.cpu, size.mem, 0, 0, 0, 0, None, None))
    )


def test_what_one_may_not_group_by_is_said() -> None:
    for by in ("pod", "label="):
        with pytest.raises(ValueError, match="expected one of vm, namespace, group, node or label=KEY"):
            key_of(by)


amounts = st.tuples(*[st.integers(0, 64_000)] * 10)
usages = st.lists(
    st.builds(
        lambda name, node, team, since, lasted, amounts: Usage(
            facts(name, node, team=team), sample_span(since, since + lasted, amounts)
        ),
        *(st.sampled_from(each) for each in (("db", "web", "x"), ("n1", "n2", ""), ("a", "b"))),
        *(st.integers(1, 10**9), st.integers(1, 10**9), amounts),
    ),
    max_size=8,
)


@given(usages, st.sampled_from(BY))
def test_every_sum_of_parts_is_its_whole(seen: list[Usage], by: str) -> None:
    high = {each.facts.vm: Size(1234, 4321) for each in seen}
    found, by_vm = (bill(seen, high, PRICES, key_of(each), DAY_ONE) for each in (by, "vm"))
    assert sum(found.lines.values(), Line()) == found.total == by_vm.total
    assert found.total.saved == found.total.at_most.money - found.total.reserved.money
    for name, line in found.lines.items():
        assert bill(seen, high, PRICES, key_of(by), DAY_ONE, only=name).lines == {name: line}


@given(st.lists(st.tuples(st.integers(1, 15), amounts), min_size=2, max_size=40))
def test_hours_agree_with_an_independent_integral(steps: list[tuple[int, Row]]) -> None:
    """By numpy's own step integral over the raw samples, in floating point."""
    times = np.cumsum([step for step, _ in steps])
    open_spans: Accumulation[VmRecord] = Accumulation()
    pace = SpanPace(30 * SECOND, 60 * SECOND, 40 * SECOND)
    closed = [
        open_spans.take("db", int(at) * SECOND, facts(), amounts, pace)
        for at, (_, amounts) in zip(times, steps, strict=True)
    ]
    spans = [each[1] for each in (*closed, *open_spans.end()) if each is not None]
    found = bill([Usage(facts(), joined(spans))], {}, PRICES, key_of("vm"), DAY_ONE).total
    reserved = np.array([amounts[6] for _, amounts in steps], dtype=float)
    expected = float(np.sum(reserved[:-1] * np.diff(times))) / 1000 / 3600
    assert float(found.reserved.cpu_hours) == pytest.approx(expected, rel=1e-3)
    assert float(found.reserved.cpu_money) == pytest.approx(expected, rel=1e-3)


def two_lines() -> Bill:
    return bill([usage(facts()), usage(facts("=cmd()"), 2)], {}, PRICES, key_of("vm"), DAY_ONE)


def test_csv_and_json_agree() -> None:
    rows = list(csv.DictReader(io.StringIO(as_csv(two_lines()))))
    assert [each["name"] for each in rows] == ["default/=cmd()", "default/db", "TOTAL"]
    assert [float(each["reserved_cost"]) for each in rows] == [4.8, 2.4, 7.2]
    found = document(two_lines(), "vm")
    assert found["nodesAtReferencePrice"] == ["n1"]
    by_team = bill([usage(facts(team="=1+1"))], {}, PRICES, key_of("label=team"), DAY_ONE)
    assert "\n'=1+1,2.0,4.0" in as_csv(by_team)


def test_rounded_lines_add_up() -> None:
    many = [usage(facts(f"vm-{at}"), hours=1 / 7 + at / 3000, reserved=Size(777, 3 * GIB // 7)) for at in range(1000)]
    found = bill(many, {}, PRICES, key_of("vm"), DAY_ONE)
    rows = list(csv.DictReader(io.StringIO(as_csv(found))))
    (data,) = [each for each in [allocations(found, "vm", "c")["data"]] if isinstance(each, list)]
    for column in ("reserved_cpu_hours", "reserved_gib_hours", "reserved_cost", "used_cost", "known_hours"):
        *lines, total = (float(each[column]) for each in rows)
        assert round(sum(lines), 6) == round(total, 6), column
    costs = [each["totalCost"] for each in data[0].values()]
    assert round(sum(costs), 6) == round(float(found.total.reserved.money), 6)


def test_opencost_reads_the_bill() -> None:
    (data,) = [each for each in [allocations(two_lines(), "vm", "c")["data"]] if isinstance(each, list)]
    db = data[0]["default/db"]
    assert (db["cpuCoreHours"], db["ramByteHours"], db["minutes"]) == (2.0, 4 * 1024**3, 60.0)
    assert db["totalCost"] == rounded(Fraction(24, 10)) == db["cpuCost"] + db["ramCost"]
    assert (db["cpuEfficiency"], db["ramEfficiency"], db["totalEfficiency"]) == (0.5, 0.5, 0.5)
    assert db["properties"] == {
        "cluster": "c",
        "namespace": "default",
        "controllerKind": "virtualmachine",
        "controller": "db",
    }
    assert (db["cpuCores"], db["ramBytes"], db["start"], db["end"]) == (
        *(2.0, 4 * 1024**3),
        *("1970-01-01T00:00:00Z", "1970-01-01T01:00:00Z"),
    )
    assert db["window"] == {"start": "1970-01-01T00:00:00Z", "end": "1970-01-02T00:00:00Z"}


def test_partial_use_compares_with_same_time() -> None:
    """A VM that is 80 % busy, of whose ten hours the use is known in the last two, when it is larger."""
    small, large = row(Size(1000, GIB), Size(0, 0)), row(Size(4000, 4 * GIB), Size(3200, GIB))
    spans = [sample_span(0, 8 * HOUR, (*small[:8], None, None)), sample_span(8 * HOUR, 10 * HOUR, large)]
    in_use = (2 * HOUR * 4000, 2 * HOUR * 4 * GIB)
    found = bill([Usage(facts(), joined(spans), in_use)], {}, PRICES, key_of("vm"), DAY_ONE)
    (data,) = [each for each in [allocations(found, "vm", "c")["data"]] if isinstance(each, list)]
    db = data[0]["default/db"]
    assert (db["cpuEfficiency"], db["ramEfficiency"]) == (0.8, 0.25)
    assert (db["cpuCoreRequestAverage"], db["cpuCoreUsageAverage"]) == (1.6, 1.28)
    assert db["totalEfficiency"] == rounded(Fraction(8, 10) * 16 / (16 + Fraction(16, 10)) + Fraction(4, 176))
    total = figures(found.total)
    assert (total["use_known_hours"], total["use_known_cost"], total["used_cost"]) == (2.0, 8.8, 6.6)


@pytest.mark.parametrize(
    ("by", "properties"),
    [
        ("namespace", {"namespace": "default"}),
        ("node", {"node": "n1"}),
        ("group", {"namespace": "default", "controllerKind": "virtualmachinegroup", "controller": "shop"}),
        ("label=team", {"labels": {"team": "a"}}),
        ("label=a.b/team-of", {"labels": {"a_b_team_of": "a"}}),
    ],
)
def test_opencost_is_told_what_lines_are(by: str, properties: dict[str, object]) -> None:
    of = msgspec.structs.replace(facts(), labels=(("a.b/team-of", "a"), ("team", "a")))
    found = bill([usage(of, reserved=Size(0, 0))], {}, PRICES, key_of(by), Period(0, 0))
    (sets,) = [each for each in [allocations(found, by, "c")["data"]] if isinstance(each, list)]
    (line,) = sets[0].values()
    assert line["properties"] == {"cluster": "c", **properties}
    assert (line["cpuCores"], line["cpuEfficiency"]) == (0.0, 0.0)


def test_opencost_knows_pods() -> None:
    found: Any = allocations(bill([usage(facts("pod/pg-1"))], {}, PRICES, key_of("vm"), DAY_ONE), "vm", "c")["data"]
    ((name, line),) = found[0].items()
    properties = {"cluster": "c", "namespace": "default", "pod": "pg-1"}
    assert (name, line["properties"]) == ("default/pod/pg-1", properties)


@pytest.mark.parametrize("by", ["group", "node", "label=team"])
def test_opencost_names_unallocated(by: str) -> None:
    found: Any = allocations(bill([usage(facts("web", node=""))], {}, PRICES, key_of(by), DAY_ONE), by, "c")["data"]
    ((name, line),) = found[0].items()
    assert (name, line["name"], line["properties"]) == (UNALLOCATED, UNALLOCATED, {"cluster": "c"})


def test_spans_of_nothing_are_no_bill() -> None:
    found = bill([], {}, PRICES, key_of("vm"), DAY_ONE)
    assert found == Bill(DAY_ONE, {}, Line(), ())
