"""``autoscale cost``: from a history's file to tables, files for other tools, a policy's price, and advice."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import sqlite3
import time
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import httpx2 as httpx
import pytest
import typer
from typer.testing import CliRunner

from deploy.kube.client import ApiClient
from protocol.kubernetes.objects import Json
from protocol.messages import ObjectName
from protocol.ranking.config import RankingConfig
from protocol.runtime.kubernetes.http_api import HttpApi
from scheduler_plugin.history.core.history_log import Batch
from scheduler_plugin.history.core.samples import HOUR, MINUTE, DecisionRecord, NodeRecord, Size, VmRecord
from scheduler_plugin.history.core.spans import sample_span
from scheduler_plugin.history.costs.consolidation import AdvisedMove, Emptied
from scheduler_plugin.history.sqlite.store import SqliteStore
from scripts.autoscale import clusters as clusters_module
from scripts.autoscale.clusters import ClusterFlags
from scripts.autoscale.costs import cost as command
from scripts.autoscale.costs.cost import price_table
from scripts.autoscale.costs.cost_views import advice, advice_document
from scripts.autoscale.history.finding import context_name, history_path
from scripts.autoscale.main import app
from tests.scheduler_plugin.history.fleet_pictures import node, pod
from tests.scripts.clusters import cluster_at

GIB = 1024**2
Cost = Callable[..., str]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Two hours of two VMs until now: one reserves 2 vCPUs and 4 GiB of 8 and 16, the other a half of that."""
    now, path = round(time.time() * 1000), tmp_path / "history.sqlite"
    store = SqliteStore(path, time.time)
    begun = now - 2 * HOUR
    batch = Batch(decisions=[DecisionRecord(now, ObjectName("default", "db"), "agent", ("x",))])
    for name, cpu in (("default/db", 2000), ("shop/[red]web", 1000)):
        namespace, _, vm = name.partition("/")
        facts = VmRecord(ObjectName(namespace, vm), "n1", "", None, Size(8000, 16 * GIB), (("team", "a"),))
        row = (*[cpu, cpu * 2 * GIB // 1000] * 4, cpu // 4, GIB)
        batch.vms += [(facts, sample_span(begun + at * MINUTE, begun + (at + 1) * MINUTE, row)) for at in range(119)]
    total = (16_000, 64 * GIB, 0, 0, 0, 0, None, None)
    batch.nodes.append((NodeRecord("n1", "m5"), sample_span(begun, now, total)))
    store.write(batch)
    store.close()
    return path


@pytest.fixture
def cost(file: Path, monkeypatch: pytest.MonkeyPatch) -> Cost:
    monkeypatch.setenv("AUTOSCALE_HOME", str(file.parent))
    monkeypatch.setenv("COLUMNS", "200")

    def run(*arguments: str, code: int = 0, with_file: bool = True) -> str:
        asked = ["cost", *(["--file", str(file), "--since", "3h"] if with_file else []), *arguments]
        found = CliRunner().invoke(app(["cost", "record"]), asked)
        assert found.exit_code == code, found.output
        return found.output if code else found.stdout

    return run


def test_table_shows_savings_and_prices(cost: Cost) -> None:
    said = cost()
    assert "shop/[red]web" in said
    assert "Scaling saved" in said
    assert "against the maximum sizes" in said
    assert "the published reference prices" in said
    assert "At the reference price, because the price table has no key for them: n1." in said
    assert "it covers the last 2.0 h only." in said
    assert "The history ends" not in said


def test_what_sleep_saved_has_a_sentence(cost: Cost, file: Path) -> None:
    """An hour asleep costs nothing, and would have cost the minimum of 1 vCPU and 2 GiB."""
    assert "asleep" not in cost()
    store, now = SqliteStore(file, time.time), round(time.time() * 1000)
    facts = VmRecord(ObjectName("lab", "idle"), "n1", "", Size(1000, 2 * GIB), Size(8000, 16 * GIB), asleep=True)
    row = (0, 0, None, None, 0, 0, 0, 0, None, None)
    store.write(Batch(vms=[(facts, sample_span(now - HOUR, now, row))]))
    store.close()
    assert "against the minimum sizes; VMs slept 1.00 h in total." in cost()
    (idle,) = [line for line in json.loads(cost("-o", "json"))["lines"] if line["name"] == "lab/idle"]
    assert (idle["reserved_cost"], idle["asleep_hours"], idle["sleep_saved"] > 0) == (0, 1, True)


def test_all_hours_are_told_where_there_is_room(cost: Cost) -> None:
    heading, *rows = [line.split() for line in cost("-o", "wide").splitlines()[1:4]]
    assert " ".join(heading).endswith(
        "unknown h used vCPU-h used GiB-h max vCPU-h max GiB-h P99.5 vCPU-h P99.5 GiB-h known h use known h"
    )
    assert rows[0][-8:] == ["0.99", "1.98", "15.87", "31.73", "3.97", "7.93", "1.98", "1.98"]
    assert rows[1][:10] == web_line(cost())


def test_unknown_amounts_are_not_zero(cost: Cost, file: Path) -> None:
    store, now = SqliteStore(file, time.time), round(time.time() * 1000)
    row = (*[None] * 6, 1000, GIB, None, None)
    store.write(Batch(vms=[(VmRecord(ObjectName("lab", "odd"), "n1"), sample_span(now - HOUR, now, row))]))
    store.close()
    said = next(line.split() for line in cost().splitlines() if "lab/odd" in line)
    assert said[4:] == ["-", "-", "-", "-", "-", "0.00"]
    (odd,) = [each for each in json.loads(cost("-o", "json"))["lines"] if each["name"] == "lab/odd"]
    assert (odd["used_cost"], odd["saved"], odd["use_known_hours"]) == (None, None, 0.0)


def test_old_history_is_noted_in_every_format(cost: Cost, file: Path) -> None:
    with contextlib.closing(sqlite3.connect(file, isolation_level=None)) as connection:
        connection.execute("UPDATE vm_spans SET since = since - ?1, until = until - ?1", (4 * HOUR,))
        assert "The history ends" not in cost("--since", "9h")  # its nodes are seen still, and no VM is there
        connection.execute("UPDATE node_spans SET since = since - ?1, until = until - ?1", (4 * HOUR,))
    ended = "The history ends 4.0 h before now: nothing was recorded since then."
    assert ended in cost("--since", "9h")
    assert json.loads(cost("--since", "9h", "-o", "json"))["notes"][-1] == ended
    assert ended not in cost("--since", "9h", "-o", "csv")  # that is on the standard error


def test_unrecorded_label_is_noted(cost: Cost) -> None:
    assert "No database has a recorded tier: record it with autoscale record --label tier." in cost(
        "--by", "label=tier"
    )
    assert "No database has a recorded" not in cost("--by", "label=team")
    of_a_file = cost("--by", "label=team", "--prometheus", "http://127.0.0.1:1", code=2, with_file=False)
    assert "Prometheus does not have the labels of VMs" in " ".join(of_a_file.replace("│", " ").split())
    assert "by label=[/]" in cost("--by", "label=[/]")


def test_names_and_numbers_are_never_cut(cost: Cost, monkeypatch: pytest.MonkeyPatch) -> None:
    wide = web_line(cost())
    monkeypatch.setenv("COLUMNS", "40")
    assert web_line(cost()) == wide


def web_line(said: str) -> list[str]:
    """The words of one VM's line."""
    return next(line.split() for line in said.splitlines() if "[red]web" in line)


def test_machines_read_the_same_numbers_in_every_form(cost: Cost, tmp_path: Path) -> None:
    (tmp_path / "prices.yaml").write_text("ranking: {prices: {cpu: 1, memGib: 0}, nodePrices: {m5: 16}}\n")
    prices = ("--prices", str(tmp_path / "prices.yaml"), "--by", "namespace")
    found = json.loads(cost(*prices, "-o", "json"))
    hours = 119 / 60
    assert [line["name"] for line in found["lines"]] == ["default", "shop"]
    assert found["total"]["reserved_cost"] == pytest.approx(3 * hours, rel=1e-6)
    assert found["total"]["saved"] == pytest.approx(13 * hours, rel=1e-6)
    assert found["nodesAtReferencePrice"] == []
    assert "TOTAL," in cost(*prices, "-o", "csv")
    assert "reserved_cost: " in cost(*prices, "-o", "yaml")
    sets = json.loads(cost(*prices, "-o", "opencost"))["data"]
    assert sets[0]["default"]["cpuCost"] == pytest.approx(2 * hours, rel=1e-6)


def test_policy_is_replayed_on_recorded_need(cost: Cost) -> None:
    said = cost("--policy", "fixed-peak")
    assert "Policy fixed-peak: 5.95 vCPU-h instead of 5.95 and 11.90 GiB-h instead of 11.90. " in said
    assert "missed 0.00 % of the needed CPU and 0.00 % of the needed memory" in said


@pytest.mark.parametrize("by", ["vm", "namespace", "node"])
def test_policy_change_is_in_every_format(cost: Cost, by: str) -> None:
    asked = ("--policy", "fixed-peak", "--by", by)
    found = json.loads(cost(*asked, "-o", "json"))
    names = [f"{what}_{unit}_hours" for unit in ("cpu", "gib") for what in ("played", "recorded", "needed", "missed")]
    assert list(found["total"]["policy"]) == [*names, "cost_change"]
    for name, whole in found["total"]["policy"].items():
        assert sum(line["policy"][name] for line in found["lines"]) == pytest.approx(whole, abs=1e-6), name
    total = found["total"]["policy"]
    assert (total["played_cpu_hours"], total["needed_gib_hours"]) == (5.95, 11.9)
    rows = list(csv.DictReader(io.StringIO(cost(*asked, "-o", "csv"))))
    of_csv = {name: float(rows[-1][f"policy_{name}"]) for name in total}
    assert (len(rows), of_csv) == (len(found["lines"]) + 1, total)
    assert cost(*asked).splitlines()[1].split()[-1] == "policy"
    assert "policy_" not in cost("-o", "csv")


def test_unreplayed_resources_are_not_zero(cost: Cost, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "MOST_PLAYED", 1)
    db, web = json.loads(cost("--policy", "hpa", "-o", "json"))["lines"]
    assert {name for name, number in db["policy"].items() if number is None} == {
        f"{what}_gib_hours" for what in ("played", "recorded", "needed", "missed")
    }
    assert set(web["policy"].values()) == {None}


def test_a_policy_of_one_resource_leaves_the_other(cost: Cost, tmp_path: Path) -> None:
    (tmp_path / "wide.yaml").write_text("{resource: memory, stages: [{quantize: {segments: [{at: 0, every: 3Gi}]}}]}")
    said = cost("--policy", str(tmp_path / "wide.yaml"))
    assert "Policy wide: 13.39 GiB-h instead of 11.90. It would have cost " in said
    assert "The policy does not cover CPU, which stays as it was." in said
    assert "vCPU-h instead" not in said
    assert "does not cover memory" in cost("--policy", "hpa")


def test_whole_agent_policy_is_replayed(cost: Cost, tmp_path: Path) -> None:
    (tmp_path / "calm.yaml").write_text("smoothing: {cpu: [{hold: {window: 1h}}], memory: default}")
    assert "Policy calm: 5.95 vCPU-h instead of 5.95 and 11.90 GiB-h" in cost("--policy", str(tmp_path / "calm.yaml"))
    (tmp_path / "odd.yaml").write_text("smoothing: {cpu: [{hold: {window: never}}]}")
    assert "smoothing.cpu" in cost("--policy", str(tmp_path / "odd.yaml"), code=2)


def test_most_expensive_vms_are_replayed(cost: Cost, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "MOST_PLAYED", 1)
    said = cost("--policy", "fixed-peak")
    assert "3.97 vCPU-h instead of 3.97" in said
    assert "Replayed on the 1 most expensive of 2 databases (67% of the reserved cost)." in said


def test_what_cannot_be_done_is_said(cost: Cost, file: Path, tmp_path: Path) -> None:
    assert "Invalid value for --by: expected one of vm, namespace" in cost("--by", "pod", code=2)
    assert "Invalid value for --since: expected a duration above zero" in cost("--since", "0s", code=2)
    assert "Invalid value for --prometheus: cannot be combined with --file" in cost("--prometheus", "http://a", code=2)
    assert "Invalid value for --consolidate: cannot be combined with --file" in cost("--consolidate", code=2)
    refused = cost("--prometheus", "http://me:secret@127.0.0.1:1", code=1, with_file=False)
    assert ("no usable response from Prometheus at 127.0.0.1:1: " in refused, "secret" in refused) == (True, False)
    for bad in ("http://[::1", "127.0.0.1:9090", "nonsense", "ftp://here", "http://"):
        assert "URL" in cost("--prometheus", bad, code=2, with_file=False)
    csv = cost("--consolidate", "-o", "csv", code=2, with_file=False)
    assert "--consolidate prints text, wide, json or yaml" in csv
    for option, value in (("--policy", "hpa"), ("--prometheus", "http://a"), ("--by", "node"), ("--since", "1d")):
        refused = cost("--consolidate", option, value, code=2, with_file=False)
        assert f"Invalid value for --consolidate: cannot be combined with {option}" in refused
    assert "neither one of" in cost("--policy", "/no/such/file", code=2)
    (tmp_path / "odd.yaml").write_text("prices: {cpu: -1}\n")
    assert "odd.yaml" in cost("--prices", str(tmp_path / "odd.yaml"), code=2)
    file.unlink()
    assert "there is no history at" in cost(code=1)
    assert "neither one of" in cost("--policy", "/no/such/file", code=2)
    SqliteStore(file, time.time).close()
    assert "The history is empty." in cost()


def test_advice_names_the_moves() -> None:
    moves = (AdvisedMove("default/db", "n2"),)
    said = list(advice([Emptied("n1", Fraction(1, 2), moves, 3), Emptied("n3", Fraction(1), (), 0)]))
    assert said[:2] == [
        "Node n1 could be emptied, which saves 0.5000 per hour; 3 pods that run no VM would be rescheduled:",
        "  default/db moves to n2",
    ]
    assert said[3] == "  It runs no VM."
    assert next(advice([])).startswith("No node could be emptied")
    assert advice_document([Emptied("n1", Fraction(1, 2), moves, 3)]) == {
        "nodes": [
            {"node": "n1", "pricePerHour": 0.5, "moves": [{"vm": "default/db", "target": "n2"}], "otherPods": 3},
        ]
    }


@pytest.mark.parametrize("role", ["", "node-role.kubernetes.io/control-plane", "node-role.kubernetes.io/master"])
def test_no_advice_empties_the_control_plane(cost: Cost, monkeypatch: pytest.MonkeyPatch, role: str) -> None:
    monkeypatch.setattr(command, "find_cluster", lambda _: cluster_at())
    monkeypatch.setattr(command, "open_site", lambda *_: contextlib.nullcontext(TwoNodes(role)))
    found = json.loads(cost("--consolidate", "-o", "json", with_file=False))
    assert [each["node"] for each in found["nodes"]] == ([] if role else ["n2"])
    assert ("Node n2 could be emptied" in cost("--consolidate", with_file=False)) == (not role)


class TwoNodes:
    """A cluster of a node with a VM, and one with none."""

    def __init__(self, role: str) -> None:
        labels = {"n1": {}, "n2": {role: ""} if role else {}}
        objects = [{"metadata": {"name": name, "labels": given}} for name, given in labels.items()]
        page = {"metadata": {"resourceVersion": "1"}, "items": objects}
        transport = httpx.MockTransport(lambda _: httpx.Response(200, json=page))
        self.client = ApiClient(HttpApi(httpx.AsyncClient(base_url="http://api", transport=transport), lambda: None))

    async def of_scheduler(self, path: str) -> Json:
        return {"nodes": [{**node(pod()), "open": True}, {**node(name="n2"), "open": False}]}


def test_prices_come_from_file_or_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AUTOSCALE_HOME", str(tmp_path))
    assert price_table(None, "local")[0] == RankingConfig()
    (tmp_path / "local").mkdir()
    (tmp_path / "local" / "scheduler.yaml").write_text("ranking: {newGroupFactor: 3}\n")
    found, said = price_table(None, "local")
    assert (found.new_group_factor, said) == (3.0, "the scheduler's price table")
    for text, problem in (
        ("- 1", "odd.yaml"),
        ("{", "invalid YAML"),
        ("[" * 99, "levels of nesting"),
        ("a: 2026-13-01", "invalid YAML"),
    ):
        (tmp_path / "odd.yaml").write_text(text)
        with pytest.raises(typer.BadParameter, match=problem):
            price_table(tmp_path / "odd.yaml", "local")


def test_keys_without_a_node_are_named(cost: Cost, tmp_path: Path) -> None:
    (tmp_path / "prices.yaml").write_text("{nodePrices: {m5: 0.5, m5.typo: 1, spot-pool: 0.1}}")
    asked = ("--prices", str(tmp_path / "prices.yaml"))
    assert "These keys of the price table match no node of this period: m5.typo, spot-pool." in cost(*asked)
    assert json.loads(cost(*asked, "-o", "json"))["unusedPrices"] == ["m5.typo", "spot-pool"]


def test_each_cluster_has_a_history_of_its_own(home: Path) -> None:
    assert history_path(ClusterFlags()) == home / "local" / "history.sqlite"
    others = {
        history_path(ClusterFlags(kubeconfig=str(home / "no-config"), context=context)) for context in ("", "a", "b")
    }
    assert len(others) == 3


def test_history_follows_cluster_of_the_kubeconfig(home: Path) -> None:
    config = str(kubeconfig(home / "config", current="a"))
    of_a, of_b = (history_path(ClusterFlags(kubeconfig=config, context=context)) for context in "ab")
    assert (history_path(ClusterFlags(kubeconfig=config)), of_a == of_b) == (of_a, False)
    kubeconfig(home / "config", current="b")
    assert history_path(ClusterFlags(kubeconfig=config)) == of_b
    copied = str(kubeconfig(home / "copied", current="b"))
    assert history_path(ClusterFlags(kubeconfig=copied)) == of_b


def test_other_clusters_do_not_use_local_prices(file: Path, home: Path) -> None:
    (home / "local" / "scheduler.yaml").write_text("ranking: {prices: {cpu: 1000, memGib: 0}}\n")
    config = kubeconfig(home / "config", current="b")
    clusters = {}
    for flags in ((), ("--kubeconfig", str(config)), ("--kubeconfig", str(config), "--context", "a")):
        arguments = ["cost", "--file", str(file), "--since", "3h", "-o", "opencost", *flags]
        found = CliRunner().invoke(app(["cost", "record"]), arguments)
        (db, _) = json.loads(found.stdout)["data"][0].values()
        clusters[db["properties"]["cluster"]] = db["cpuCost"] > 1000
    assert clusters == {"local": True, "b": False, "a": False}
    (home / "odd").write_text("{")
    assert context_name(ClusterFlags(kubeconfig=str(home / "odd"))) == str(home / "odd")


def test_local_cluster_is_found_by_kubeconfig(home: Path) -> None:
    """As kubectl's plugin means it."""
    config = kubeconfig(home / "local" / "kubeconfig", current="a")
    assert history_path(ClusterFlags(kubeconfig=str(config))) == home / "local" / "history.sqlite"


def test_stopped_local_cluster_keeps_its_history(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clusters_module, "DEFAULT_KUBECONFIG", usual := kubeconfig(home / "config", current="a"))
    (home / "local" / "spec.json").write_text("{}")
    local, of_kubectl = home / "local" / "history.sqlite", history_path(ClusterFlags(context="a"))
    assert (history_path(ClusterFlags()), history_path(ClusterFlags(), records=True)) == (local, of_kubectl)
    with monkeypatch.context() as given:
        given.setenv("KUBECONFIG", str(usual))
        assert history_path(ClusterFlags()) == of_kubectl, "a set variable never falls back"
    of_kubectl.parent.mkdir(parents=True)
    of_kubectl.write_bytes(b"")
    assert history_path(ClusterFlags()) == of_kubectl


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for local clusters, without a kubeconfig."""
    monkeypatch.setenv("AUTOSCALE_HOME", str(tmp_path / "clusters"))
    monkeypatch.setenv("KUBECONFIG", "")
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "clusters" / "local").mkdir(parents=True)
    return tmp_path / "clusters"


def kubeconfig(path: Path, current: str) -> Path:
    """Two contexts of two clusters."""
    named = [{"name": each, "context": {"cluster": each}} for each in "ab"]
    clusters = [{"name": each, "cluster": {"server": f"https://{each}.example"}} for each in "ab"]
    path.write_text(json.dumps({"current-context": current, "contexts": named, "clusters": clusters}))
    return path


@pytest.mark.parametrize(
    ("every", "code"), [("10m", 1), ("1", 1), ("0", 2), ("500ms", 2), ("11m", 2), ("100d", 2), ("soon", 2)]
)
def test_recorder_samples_every_second_to_ten_minutes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, every: str, code: int
) -> None:
    """No sample counts for longer than a span may last."""
    monkeypatch.setenv("AUTOSCALE_HOME", str(tmp_path))
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    found = CliRunner().invoke(app(["cost", "record"]), ["record", "--every", every])
    assert found.exit_code == code, found.output
