"""``autoscale explain VM --since``: what was decided, from a history's file."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from protocol.messages import ObjectName
from scheduler_plugin.history.core.history_log import Batch
from scheduler_plugin.history.core.samples import HOUR, DecisionRecord, MoveRecord, Size
from scheduler_plugin.history.sqlite.store import SqliteStore
from scripts.autoscale import explain
from scripts.autoscale.explain import lines_of
from scripts.autoscale.main import app

DB = ObjectName("default", "db")
BEGAN = 1_767_225_600_000
GROWN = DecisionRecord(
    BEGAN, DB, "agent", ("growing for [red]cpu[/red]", "cpu needs 2"), Size(2000, 1024**2), denied=True
)
MOVED = MoveRecord(
    ObjectName("default", "m"), DB, "n1", "n2", "Succeeded", BEGAN + 5000, BEGAN + 9000, "n1 is full", 80
)


def test_decisions_and_migrations_are_told_in_their_order() -> None:
    assert list(lines_of(DB, [GROWN], [MOVED], ("A note.",))) == [
        "2026-01-01T00:00:00Z agent (2 cpu, 1Gi): growing for [red]cpu[/red] Partly denied.",
        "  cpu needs 2",
        "2026-01-01T00:00:05Z migration from n1 to n2: Succeeded after 4 s, 80 ms downtime: n1 is full",
        "A note.",
    ]
    assert list(lines_of(DB, [], [], ())) == ["Nothing was recorded for default/db in this period."]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("AUTOSCALE_HOME", str(tmp_path))
    (tmp_path / "local").mkdir()
    return tmp_path


def said(*arguments: str) -> tuple[int, str]:
    found = CliRunner().invoke(app(["explain", "migrate"]), ["explain", "db", *arguments])
    return found.exit_code, found.output


def test_a_recorded_decision_is_found_without_a_cluster(home: Path) -> None:
    now = round(time.time() * 1000)
    store = SqliteStore(home / "local" / "history.sqlite", time.time)
    store.write(
        Batch(decisions=[DecisionRecord(now - at * HOUR, DB, "agent", (f"it was {at} h ago",)) for at in (1, 3)])
    )
    store.close()
    code, told = said("--since", "2h")
    assert (code, "it was 1 h ago" in told, "it was 3 h ago" in told) == (0, True, False)
    code, told = said("--since", "4h", "-o", "json")
    assert [each["said"] for each in json.loads(told)["decisions"]] == [["it was 3 h ago"], ["it was 1 h ago"]]


@pytest.mark.parametrize("told", [700, 60])
def test_no_decision_is_left_out_in_silence(home: Path, monkeypatch: pytest.MonkeyPatch, told: int) -> None:
    monkeypatch.setattr(explain, "MOST_SHOWN", 650)
    now = round(time.time() * 1000)
    store = SqliteStore(home / "local" / "history.sqlite", time.time)
    store.write(
        Batch(decisions=[DecisionRecord(now - at * 1000, DB, "agent", (f"no {at}.",)) for at in range(1, told + 1)])
    )
    store.close()
    lines = said("--since", "2h")[1].splitlines()
    older = ["Only the last 650 decisions are shown; use a shorter --since to see all of them."] if told > 650 else []
    assert [line.rpartition(" ")[2] for line in lines[: min(told, 650)]] == [
        f"{at}." for at in range(min(told, 650), 0, -1)
    ]
    assert lines[min(told, 650) :] == older
    assert json.loads(said("--since", "2h", "-o", "json")[1])["notes"] == older


def test_what_cannot_be_told_is_said(home: Path) -> None:
    code, told = said("--prometheus", "http://127.0.0.1:1")
    assert (code, "needs --since" in told) == (2, True)
    for bad in (["--watch"], ["--prometheus", "http://[::1"], ["--prometheus", "nonsense"]):
        code, told = said("--since", "2h", *bad)
        assert (code, "Error" in told) == (2, True), told
    assert said("--since", "soon")[0] == 2
    code, told = said("--since", "2h")
    assert code == 1
    assert "there is no history at" in told
