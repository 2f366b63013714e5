"""One fleet, kept by the recorder's file and by Debian's Prometheus: both answer alike."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from protocol.messages import ObjectName
from scheduler_plugin.history.core.accumulation import Accumulation, pace_for
from scheduler_plugin.history.core.batches import Batch
from scheduler_plugin.history.core.samples import HOUR, SECOND, VM_COLUMNS, NodeFacts, Row, Size, VmFacts
from scheduler_plugin.history.core.spans import held
from scheduler_plugin.history.ports import Period
from scheduler_plugin.history.prometheus.questions import PrometheusHistory
from scheduler_plugin.history.sqlite.questions import SqliteHistory
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


def samples() -> Iterator[tuple[int, VmFacts, Row]]:
    """Each VM every 15 s; the first one moves after half the time, the second is not seen for ten minutes."""
    for at in range(BEGIN, END + EVERY, EVERY):
        for vm in (DB, WEB):
            away = vm == WEB and BEGIN + 20 * 60 * SECOND <= at < BEGIN + 30 * 60 * SECOND
            node = "n1" if vm == WEB or at < BEGIN + HOUR // 2 else "n2"
            if not away:
                yield at, VmFacts(vm, node, "", Size(250, GIB), Size(8000, 16 * GIB)), amounts(vm, at)


def backfilled(folder: Path) -> None:
    """The samples as Prometheus would have scraped them, stale where the VM was away."""
    lines: dict[str, list[str]] = {"autoscale_agent_cpu_cores": [], "autoscale_agent_memory_bytes": []}
    for at, facts, row in samples():
        values = dict(zip(VM_COLUMNS, row, strict=True))
        for resource, metric, scale in (
            ("cpu", "autoscale_agent_cpu_cores", 0.001),
            ("mem", "autoscale_agent_memory_bytes", 1024),
        ):
            bounds = {"least": getattr(facts.least, resource), "most": getattr(facts.most, resource)}
            found = {said: values[f"{kind}_{resource}"] for kind, words in KINDS.items() for said in words} | bounds
            for kind, value in found.items():
                labels = f'namespace="{facts.vm.namespace}",vm="{facts.vm.name}",node="{facts.node}",kind="{kind}"'
                lines[metric].append(f"{metric}{{{labels}}} {value * scale} {at / 1000}")
    for at in range(BEGIN, END, EVERY):
        for what, value in (("cpu", 16), ("memory", 64 * 1024**3)):
            labels = f'node="n1",resource="{what}"'
            lines.setdefault("autoscale_scheduler_node_reservable", []).append(
                f"autoscale_scheduler_node_reservable{{{labels}}} {value} {at / 1000}"
            )
    lines["autoscale_agent_vms"] = [f"autoscale_agent_vms 1 {at / 1000}" for at in range(BEGIN, END, EVERY)]
    text = "".join(f"# TYPE {metric} gauge\n" + "".join(f"{line}\n" for line in lines[metric]) for metric in lines)
    (folder / "fleet.om").write_text(text + "# EOF\n")
    command = ("promtool", "tsdb", "create-blocks-from", "openmetrics", str(folder / "fleet.om"), str(folder / "data"))
    subprocess.run(command, check=True, capture_output=True)


def recorded(path: Path) -> None:
    store, spans = SqliteStore(path, time.time), Accumulation[VmFacts]()
    batch = Batch(nodes=[(NodeFacts("n1"), held(BEGIN, END, (16_000, 64 * GIB, *[None] * 6)))])
    for at, facts, row in samples():
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
        assert (node.facts.node, node.span.node_mean("total_cpu")) == ("n1", 16_000.0)
        assert (await other.extent()).since is not None
