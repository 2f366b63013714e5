"""The command line: tables, JSON, a picture, Ctrl-C, and errors with status 2."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from scheduler_plugin.ledger.ledger import Ledger
from scheduler_plugin.placement.verdict import Filtered
from scripts.autoscale.main import app
from scripts.autoscale.simulate.invariant_checks import InvariantChecks
from scripts.autoscale.simulate.run import Run

TINY = ("--nodes", "2", "--vms", "12", "--hours", "0.1", "--step", "30", "--order")


def simulate(*arguments: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app(), ["simulate", *arguments], env={"COLUMNS": "300"})
    return result.exit_code, result.stdout, result.stderr


@pytest.fixture
def trace(tmp_path: Path) -> str:
    path = tmp_path / "short.csv"
    path.write_text("seconds,cpu_cores\n0,1\n60,2\n120,1\n")
    return str(path)


def test_each_order_is_simulated_once(trace: str) -> None:
    status, out, complaints = simulate(*TINY, "random", "none", "random", "--traces", trace)
    assert (status, complaints) == (0, "")
    assert out.startswith("12 VMs on 2 nodes of ")
    assert out.count("random") == out.count("none") == 1


def test_partly_idle_recording_is_played(tmp_path: Path) -> None:
    path = tmp_path / "idle.csv"
    path.write_text("seconds,cpu_cores\n0,2\n60,0\n120,1e-9\n180,2\n240,0\n")
    status, out, complaints = simulate(*TINY, "none", "--traces", str(path), "--json")
    assert (status, complaints, json.loads(out)["finished"]) == (0, "", True)


@pytest.mark.parametrize(("flags", "read"), [(["-o", "json"], json.loads), (["-o", "yaml"], yaml.safe_load)])
def test_scripts_read_the_same_in_every_form(trace: str, flags: list[str], read: Callable[[str], Any]) -> None:
    (_, out, _), (_, as_json, _) = (simulate(*TINY, "none", "--traces", trace, *each) for each in (flags, ["--json"]))
    found, same = read(out), json.loads(as_json)
    for each in (*found["orders"], *same["orders"]):
        each["figures"].pop("cpu_seconds", None)
    assert found == same


def test_json_is_one_document_next_to_picture(trace: str, tmp_path: Path) -> None:
    picture = tmp_path / "day.svg"
    status, out, _ = simulate(*TINY, "none", "--traces", trace, "--json", "--plot", str(picture))
    found = json.loads(out)
    assert (status, found["finished"], found["nodes"], found["vms"]) == (0, True, 2, 12)
    assert [each["figures"]["order"] for each in found["orders"]] == ["none"]
    assert found["orders"][0]["figures"]["hours"] == 0.1
    assert picture.read_text().startswith("<?xml")


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--nodes", "0"], "--nodes"),
        (["--hours", "0"], "--hours"),
        (["--step", "60"], "--step"),
        (["--watermark", "1.1"], "--watermark"),
        (["--fill", "0"], "--fill"),
        (["--seed", "-1"], "--seed"),
        (
            ["--order", "youngest"],
            "--order: expected any of least-cost, least-loaded, random, oldest-first, none, got 'youngest'",
        ),
        (["--bandwidth", "fast"], "--bandwidth: "),
        (["--bandwidth", "0"], "--bandwidth: must be more than zero"),
        (["--speed", "inf"], "Invalid value for '--speed'"),
        (["--watermark", "nan"], "--watermark"),
        (["--plot", "day.txt"], "Invalid value for '--plot': 'day.txt' does not end in .png, .svg, .pdf"),
        (["--plot", "missing/day.svg"], "Invalid value for '--plot': folder 'missing' does not exist"),
        (["--traces", "missing.csv"], "missing.csv"),
    ],
    ids=lambda value: value if isinstance(value, str) else " ".join(value),
)
def test_invalid_settings_are_refused_at_start(
    arguments: list[str], complaint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(Run, "execute")
    status, out, complaints = simulate(*arguments)
    assert (status, out) == (2, "")
    assert complaint in complaints


def test_too_full_fleet_suggests_an_option(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Ledger, "filter", lambda *_: Filtered([], {}, {}))
    status, out, complaints = simulate(*TINY, "none")
    assert (status, out) == (2, "")
    assert complaints.startswith("autoscale simulate: --fill: no node has room")


def test_overcommitment_is_reported_with_exit_code(trace: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def found(self: InvariantChecks, *_: object) -> None:
        self.problems.append("15 s: a test says so")

    monkeypatch.setattr(InvariantChecks, "after_step", found)
    status, out, _ = simulate(*TINY, "none", "--traces", trace)
    assert status == 1
    assert "none: 15 s: a test says so" in out


def interrupted_after(steps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C arrives during the second order."""
    play, runs = Run.execute, []

    def played(self: Run) -> Iterator[int]:
        runs.append(self)
        for step in play(self):
            if len(runs) == 2 and step > steps:
                raise KeyboardInterrupt
            yield step

    monkeypatch.setattr(Run, "execute", played)


def test_ctrl_c_prints_and_draws_partial_results(trace: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[tuple[list[str], Path]] = []
    draw = "scripts.autoscale.simulate.plot.draw"
    monkeypatch.setattr(draw, lambda _, told, path: drawn.append(([each.figures.order for each in told], path)))
    interrupted_after(125, monkeypatch)
    picture = tmp_path / "day.svg"
    orders = ("none", "--order", "random", "--order", "oldest-first")
    status, out, _ = simulate(*TINY, *orders, "--traces", trace, "--json", "--plot", str(picture))
    found = json.loads(out)
    told = {each["figures"]["order"]: each["figures"]["hours"] for each in found["orders"]}
    assert (status, found["finished"], told) == (130, False, {"none": 0.1, "random": 0.05})
    assert drawn == [(["none", "random"], picture)]


def test_ctrl_c_during_warm_up_is_no_error(trace: str, monkeypatch: pytest.MonkeyPatch) -> None:
    interrupted_after(1, monkeypatch)
    status, out, complaints = simulate(*TINY, "none", "--order", "random", "--traces", trace)
    assert (status, complaints) == (130, "")
    assert "random" in out


def test_ctrl_c_during_placement_omits_the_order(trace: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Run, "_place", interrupt)
    status, out, _ = simulate(*TINY, "none", "--traces", trace, "--json")
    assert (status, json.loads(out)["orders"]) == (130, [])
