"""One fleet, kept by the recorder's file and by Debian's Prometheus: both answer alike."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from types import MappingProxyType
from unittest.mock import patch

import pytest

from protocol.messages import ObjectName
from protocol.ranking.config import Prices, RankingConfig
from scheduler_plugin.history.core.accumulation import Accumulation, pace_for
from scheduler_plugin.history.core.history_log import Batch
from scheduler_plugin.history.core.samples import (
    COLUMN_INDEX,
    DAY,
    HOUR,
    NODE_COLUMN_INDEX,
    SECOND,
    VM_COLUMNS,
    NodeRecord,
    Row,
    Size,
    VmRecord,
)
from scheduler_plugin.history.core.spans import sample_span
from scheduler_plugin.history.costs.bills import bill, key_of
from scheduler_plugin.history.ports import Period
from scheduler_plugin.history.priced_usage import priced_usage
from scheduler_plugin.history.prometheus import expressions
from scheduler_plugin.history.prometheus.queries import PrometheusHistory
from scheduler_plugin.history.sqlite.queries import SqliteHistory
from scheduler_plugin.history.sqlite.store import SqliteStore
from tests.deploy.monitoring.prometheus_server import prometheus

pytestmark = pytest.mark.monitoring

GIB = 1024**2
EVERY = 15 * SECOND
END = round(time.time()) // 60 * 60 * 1000 - 4 * HOUR
BEGIN = END - HOUR
PERIOD = Period(BEGIN, END)
DB, WEB = ObjectName("default", "db"), ObjectName("shop", "web")
METRICS = (("cpu", "autoscale_agent_cpu_cores", 0.001), ("mem", "autoscale_agent_memory_bytes", 1024))
KINDS = {"size": ("ordered", "actual"), "need": ("goal",), "permit": ("permit",), "used": ("used",)}


def amounts(vm: ObjectName, at: int) -> Row:
    """A load that comes and goes; the second VM is still."""
    cpu = 1000 + 250 * ((at - BEGIN) // (5 * 60 * SECOND) % 7) if vm == DB else 500
    return (cpu, 4 * GIB, cpu - 100, 2 * GIB, cpu + 250, 4 * GIB, cpu + 250, 4 * GIB, cpu // 2, GIB)


def samples(*stays: str) -> Iterator[tuple[int, VmRecord, Row]]:
    """Each VM every 15 s; the first one on each of these nodes in turn, the second one missing for ten minutes."""
    for at in range(BEGIN, END + EVERY, EVERY):
        for vm in (DB, WEB):
            away = vm == WEB and BEGIN + 20 * 60 * SECOND <= at < BEGIN + 30 * 60 * SECOND
            node = "n1" if vm == WEB else stays[min(len(stays) - 1, (at - BEGIN) * len(stays) // HOUR)]
            if not away:
                yield at, VmRecord(vm, node, "", Size(250, GIB), Size(8000, 16 * GIB)), amounts(vm, at)


def backfilled(
    folder: Path,
    odd: Mapping[tuple[ObjectName, int], str] = MappingProxyType({}),
    stays: Sequence[str] = ("n1", "n2"),
    every: int = EVERY,
) -> None:
    """The samples as Prometheus would have scraped them, stale where the VM was away; ``odd`` are texts instead."""
    lines: dict[str, list[str]] = {"autoscale_agent_cpu_cores": [], "autoscale_agent_memory_bytes": []}
    for at, facts, row in samples(*stays):
        if (at - BEGIN) % every:
            continue
        values = dict(zip(VM_COLUMNS, row, strict=True))
        for resource, metric, scale in (
            ("cpu", "autoscale_agent_cpu_cores", 0.001),
            ("mem", "autoscale_agent_memory_bytes", 1024),
        ):
            bounds = {"least": getattr(facts.least, resource), "most": getattr(facts.most, resource)}
            found = {word: values[f"{kind}_{resource}"] for kind, words in KINDS.items() for word in words} | bounds
            for kind, value in found.items():
                labels = f'namespace="{facts.vm.namespace}",vm="{facts.vm.name}",node="{facts.node}",kind="{kind}"'
                said = odd.get((facts.vm, at), str(value * scale))
                lines[metric].append(f"{metric}{{{labels}}} {said} {at / 1000}")
    for at in range(BEGIN, END, EVERY):
        for what, value in (("cpu", 16), ("memory", 64 * 1024**3)):
            labels = f'node="n1",resource="{what}"'
            lines.setdefault("autoscale_scheduler_node_reservable", []).append(
                f"autoscale_scheduler_node_reservable{{{labels}}} {value} {at / 1000}"
            )
    lines["autoscale_agent_vms"] = [f"autoscale_agent_vms 1 {at / 1000}" for at in range(BEGIN, END, every)]
    text = "".join(f"# TYPE {metric} gauge\n" + "".join(f"{line}\n" for line in lines[metric]) for metric in lines)
    make_blocks(folder, text)


def make_blocks(folder: Path, samples: str) -> None:
    """Samples in OpenMetrics' form as a Prometheus would have stored them."""
    (folder / "fleet.om").write_text(samples + "# EOF\n")
    command = ("promtool", "tsdb", "create-blocks-from", "openmetrics", str(folder / "fleet.om"), str(folder / "data"))
    subprocess.run(command, check=True, capture_output=True)


def recorded(path: Path) -> None:
    store, spans = SqliteStore(path, time.time), Accumulation[VmRecord]()
    batch = Batch(nodes=[(NodeRecord("n1"), sample_span(BEGIN, END, (16_000, 64 * GIB, *[None] * 6)))])
    for at, facts, row in samples("n1", "n2"):
        closed = spans.take(facts.vm, at, facts, row, pace_for(2, EVERY))
        batch.vms += [] if closed is None else [closed]
    batch.vms += spans.end()
    store.write(batch)
    store.close()


async def test_both_adapters_answer_alike(tmp_path: Path) -> None:
    backfilled(tmp_path)
    recorded(tmp_path / "history.sqlite")
    file = SqliteHistory(tmp_path / "history.sqlite")
    async with prometheus(tmp_path, {}) as server:
        other = PrometheusHistory(server.http, EVERY)
        theirs, ours = [
            {(each.facts.vm, each.facts.node): each for each in await which.usage(PERIOD)} for which in (other, file)
        ]
        assert theirs.keys() == ours.keys() == {(DB, "n1"), (DB, "n2"), (WEB, "n1")}
        for key, usage in ours.items():
            assert theirs[key].span.sums == pytest.approx(usage.span.sums, rel=0.001 if key[0] == DB else 0.02), key
            assert theirs[key].facts == usage.facts
        high = await file.high_needs(PERIOD, 0.995)
        assert await other.high_needs(PERIOD, 0.995) == high
        assert [(move.vm, move.source, move.target) for move in await other.moves(None, PERIOD)] == [(DB, "n1", "n2")]
        assert {each.vm for each in await other.decisions(None, PERIOD)} == {DB}
        spans = await other.vm_series(DB, PERIOD, EVERY)
        assert [span.mean("size_cpu") for span in spans[:1]] == [1000.0]
        (node,) = await other.node_usage(PERIOD)
        total, known = (
            node.span.sums[NODE_COLUMN_INDEX["total_cpu"]],
            node.span.known_times[NODE_COLUMN_INDEX["total_cpu"]],
        )
        assert (node.facts.node, total / known) == ("n1", 16_000.0)
        assert (await other.extent()).since is not None


@pytest.mark.parametrize("value", ["NaN", "+Inf", "-Inf", "-1"])
async def test_bad_sample_costs_one_moment(tmp_path: Path, value: str) -> None:
    backfilled(tmp_path, {(DB, BEGIN + HOUR // 4): value})
    async with prometheus(tmp_path, {}) as server:
        found = PrometheusHistory(server.http, EVERY)
        (db,) = [each for each in await found.usage(PERIOD) if (each.facts.vm, each.facts.node) == (DB, "n1")]
        reserved = COLUMN_INDEX["reserved_cpu"]
        assert db.span.known_times[reserved] == HOUR // 2 - EVERY
        assert db.span.sums[reserved] / db.span.known_times[reserved] == pytest.approx(1875, rel=0.01)
        assert await found.high_needs(PERIOD, 0.995) == {DB: Size(2400, 2 * GIB), WEB: Size(400, 2 * GIB)}
        (node,) = await found.node_usage(PERIOD)
        assert node.span.peaks[NODE_COLUMN_INDEX["used_cpu"]] == 2250


async def test_vm_that_left_and_returned_migrated_twice(tmp_path: Path) -> None:
    backfilled(tmp_path, stays=("n1", "n2", "n1"))
    async with prometheus(tmp_path, {}) as server:
        moves = await PrometheusHistory(server.http, EVERY).moves(DB, PERIOD)
    assert [(move.source, move.target) for move in moves] == [("n2", "n1"), ("n1", "n2")]


@pytest.mark.parametrize("every", [15, 30, 60])
async def test_costs_do_not_depend_on_scrapes(tmp_path: Path, every: int) -> None:
    backfilled(tmp_path, every=every * SECOND)
    async with prometheus(tmp_path, {}) as server:
        usages = await PrometheusHistory(server.http).usage(PERIOD)
    of_db = [each.span for each in usages if each.facts.vm == DB]
    reserved = COLUMN_INDEX["reserved_cpu"]
    assert sum(each.known_times[reserved] for each in of_db) == HOUR
    assert sum(each.sums[reserved] for each in of_db) / HOUR == pytest.approx(1250 + 250 * 31 / 12, rel=0.001)


async def test_hourly_load_is_costed_exactly(tmp_path: Path) -> None:
    """4 vCPUs for 75 s of every five minutes, and a half of one else."""
    week = Period(END - 7 * DAY, END)
    lines = ["# TYPE autoscale_agent_cpu_cores gauge"]
    for kind in ("ordered", "permit", "goal"):
        labels = f'namespace="default",vm="db",node="n1",kind="{kind}"'
        lines += [
            f"autoscale_agent_cpu_cores{{{labels}}} {4 if 0 < at % (300 * SECOND) <= 75 * SECOND else 0.5} {at / 1000}"
            for at in range(week.since, week.until, EVERY)
        ]
    make_blocks(tmp_path, "".join(f"{line}\n" for line in lines))
    async with prometheus(tmp_path, {}) as server:
        found = PrometheusHistory(server.http, EVERY)
        (usage,) = await found.usage(week)
        high = await found.high_needs(week, 0.995)
        with patch.object(expressions, "AT_ONCE", 2000):
            (in_parts,) = await found.usage(week)
    reserved = COLUMN_INDEX["reserved_cpu"]
    assert (usage.span.known_times[reserved], usage.span.peaks[reserved]) == (7 * DAY, 4000)
    assert usage.span.sums[reserved] == pytest.approx(1375 * 7 * DAY, rel=0.001)
    assert (in_parts.span.sums, high[DB].cpu) == (usage.span.sums, 4000)


async def test_reused_node_name_keeps_price_keys(tmp_path: Path) -> None:
    """As kube-state-metrics exports labels: ``n1`` is a spot node of another type in the second half of the hour."""
    backfilled(tmp_path)
    spot = ',label_eks_amazonaws_com_capacity_type="SPOT",label_eks_amazonaws_com_nodegroup="web"'
    lines = [
        f'kube_node_labels{{node="n1",label_node_kubernetes_io_instance_type="{kind}"{more}}} 1 {at / 1000}\n'
        for kind, more, since, until in (("m5", "", BEGIN, BEGIN + HOUR // 2), ("m6", spot, BEGIN + HOUR // 2, END))
        for at in range(since, until, 60 * SECOND)
    ]
    whole = (tmp_path / "fleet.om").read_text().replace("# EOF\n", "")
    make_blocks(tmp_path, whole + "# TYPE kube_node_labels gauge\n" + "".join(lines))
    table = RankingConfig(prices=Prices(cpu=1, mem_gib=0), node_prices={"m5": 16, "m6/spot": 4, "typo": 1})
    async with prometheus(tmp_path, {}) as server:
        history = PrometheusHistory(server.http, EVERY)
        one, other = await history.node_usage(PERIOD)
        assert (one.facts.price_keys, other.facts.price_keys) == (("n1", "m5"), ("n1", "web", "m6/spot", "m6"))
        assert abs(one.span.until - (BEGIN + HOUR // 2)) <= 6 * 60 * SECOND
        prices, usages = await priced_usage(history, PERIOD, table)
    assert prices.unused == ("typo",)
    found = bill([usage for usage in usages if usage.facts.vm == WEB], {}, prices, key_of("vm"), PERIOD)
    assert {prices.on("n1", usage.span).cpu for usage in usages} == {Fraction(1, 4), Fraction(1, 1)}
    known = 50 / 60  # it is not seen for ten minutes of the first half
    assert float(found.total.reserved.money) == pytest.approx(0.75 * (20 / 60 + 30 / 60 / 4), rel=0.05)
    assert float(found.total.known_hours) == pytest.approx(known, rel=0.05)
