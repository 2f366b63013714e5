"""The command line: tables, JSON, a picture, saved recordings, and errors with status 2."""

from __future__ import annotations

import json
import os
from functools import cache
from operator import attrgetter
from pathlib import Path

import pytest
import typer
import yaml
from typer.testing import CliRunner

from scripts.autoscale.main import MultiValueCommand, repeat_options
from scripts.autoscale.replay.command import announced, announced_players, replay
from scripts.autoscale.replay.generate import generate
from scripts.autoscale.replay.recording import timeline
from scripts.autoscale.replay.working_sets import played_scenarios

PNG = b"\x89PNG"


def run(*arguments: str) -> tuple[int, str, str]:
    app = typer.Typer()
    app.command(cls=MultiValueCommand)(replay)
    result = CliRunner().invoke(app, list(arguments))
    return result.exit_code, result.stdout, result.stderr


@pytest.fixture
def trace(tmp_path: Path) -> str:
    path = tmp_path / "short.csv"
    path.write_text("seconds,cpu_cores\n" + "".join(f"{at * 60},{1 + at % 3}\n" for at in range(60)))
    return str(path)


def test_tables_tell_each_recording_and_the_whole(trace: str) -> None:
    status, out, _ = run("--trace", trace, "--trace", trace, "--policy", "default", "--policy", "agent-last")
    assert status == 0
    assert out.count("short: 0.9 h scored every 5 s") == 2
    assert "overall, 2 recordings at speed 1" in out
    assert out.count("agent-last") == 3


def test_progress_names_what_is_replayed() -> None:
    """A replay of all policies takes half a minute, and showed nothing until its end."""
    seen = list[str]()
    recordings = [generate(shape, 1) for shape in ("step", "spike")]
    assert list(announced(recordings, seen.append)) == recordings
    line = timeline(generate("noisy", 1))
    demands = [player(line).tolist() for player in announced_players({"a": attrgetter("demand")}, seen.append).values()]
    assert demands == [line.demand.tolist()]
    assert seen == ["replaying step (1 of 2)", "replaying spike (2 of 2)", "replaying noisy with a"]


def test_without_a_terminal_no_progress_is_printed(trace: str) -> None:
    assert run("--trace", trace, "--policy", "default")[2] == ""


def test_working_set_is_played_and_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scripts.autoscale.replay.command.played_scenarios", cache(played_scenarios))
    status, out, _ = run("--working-set", "idle-hour")
    assert status == 0
    assert "idle-hour: it gives memory back: the database has been idle for 5" in out
    found = json.loads(run("--working-set", "idle-hour", "--json")[1])
    assert [(each["name"], each["came_to_rest_at"], each["busiest_settled_hour"]) for each in found] == [
        ("idle-hour", 2.25, 0)
    ]
    assert run("--working-set", "none")[::2] == (
        2,
        "autoscale replay: --working-set: expected all or one of hot-set, too-large, popular-part, growing, shrinking, "
        "idle-night, idle-hour, scan, got 'none'\n",
    )


def test_a_folder_stands_for_every_recording_in_it(trace: str, tmp_path: Path) -> None:
    folder = str(Path(trace).parent)
    status, out, _ = run("--trace", folder, trace, "--policy", "default", "fixed-peak", "--json")
    assert (status, len(json.loads(out)["recordings"])) == (0, 2)
    (tmp_path / "empty").mkdir()
    assert (
        run("--trace", str(tmp_path / "empty"))[2]
        == f"autoscale replay: {tmp_path}/empty: no CSV file in this folder\n"
    )


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        (["--trace", "a", "b", "--json"], ["--trace", "a", "--trace", "b", "--json"]),
        (["--trace=a", "b", "--speed", "2"], ["--trace=a", "--trace", "b", "--speed", "2"]),
        (["--policy", "x", "--trace", "a"], ["--policy", "x", "--trace", "a"]),
        (["a"], ["a"]),
    ],
)
def test_an_option_may_be_followed_by_several_values(typed: list[str], meant: list[str]) -> None:
    assert list(repeat_options(typed)) == meant


def test_scripts_read_the_same_in_every_form(trace: str) -> None:
    for asked in (["--trace", trace, "--policy", "vpa"], ["--trace", trace, "--group", "--policy", "vertical"]):
        found = json.loads(run(*asked, "--json")[1])
        assert json.loads(run(*asked, "-o", "json")[1]) == yaml.safe_load(run(*asked, "-o", "yaml")[1]) == found


def test_gap_is_told_beside_json(tmp_path: Path) -> None:
    path = tmp_path / "gap.csv"
    path.write_text("seconds,cpu_cores\n0,1\n60,1\n120,2\n90000,1\n90060,1\n")
    status, out, complaints = run("--trace", str(path), "--policy", "vpa", "--json")
    assert (status, "gap" in json.dumps(json.loads(out))) == (0, True)
    assert complaints == "gap: no value for 25.0 h from second 120 on: the last one is used\n"


@pytest.mark.parametrize("option", ["--trace", "--traces"])
def test_recordings_have_two_spellings(option: str, trace: str) -> None:
    assert run(option, trace, trace, "--policy", "vpa", "--json")[0] == 0


def test_json_is_one_document(trace: str) -> None:
    status, out, _ = run("--trace", trace, "--policy", "vpa", "--json", "--speed", "2")
    assert (status, list(json.loads(out)["overall"])) == (0, ["vpa"])


def test_generated_recordings_are_played_and_saved(tmp_path: Path) -> None:
    status, out, _ = run("--policy", "fixed-peak", "--speed", "100", "--save", str(tmp_path / "kept"))
    assert (status, sorted(path.stem for path in (tmp_path / "kept").iterdir())) == (
        0,
        ["diurnal", "noisy", "on-off", "spike", "step"],
    )
    assert "overall, 5 recordings at speed 100" in out


@pytest.mark.parametrize("speed", ["inf", "nan", "1e7", "0"])
def test_speed_that_cannot_be_is_refused(speed: str, trace: str) -> None:
    status, out, complaint = run("--trace", trace, "--policy", "fixed-peak", "--speed", speed)
    assert (status, out, "Invalid value for '--speed'" in complaint) == (2, "", True)


def test_speed_leaves_some_steps(trace: str) -> None:
    """With one step, every policy costs the same and misses nothing."""
    for group in ((), ("--group",)):
        status, out, complaint = run("--trace", trace, "--speed", "5000", *group)
        said = "autoscale replay: short: at this speed it lasts 0.708 s, too short to replay: use a lower --speed\n"
        assert (status, out, complaint) == (2, "", said)


def test_saving_replaces_no_recording_that_is_replayed(trace: str, tmp_path: Path) -> None:
    """The recording's other columns would be lost."""
    Path(trace).write_text("seconds,cpu_cores,host\n0,1,a\n60,2,a\n")
    before = Path(trace).read_text()
    status, _, complaint = run("--trace", trace, "--policy", "fixed-peak", "--save", str(tmp_path))
    assert (status, Path(trace).read_text()) == (2, before)
    said = f"autoscale replay: {trace}: --save would replace this recording, which is replayed: use another folder"
    assert complaint.splitlines()[-1] == said


@pytest.mark.parametrize("arguments", [(), ("--group",), ("--working-set", "hot-set")])
def test_saving_needs_a_folder(trace: str, arguments: tuple[str, ...]) -> None:
    status, _, complaint = run("--trace", trace, "--save", trace, *arguments)
    assert (status, "is not a folder" in " ".join(complaint.replace("│", "").split())) == (2, True)


def test_recordings_of_one_name_are_all_saved(trace: str, tmp_path: Path) -> None:
    other = tmp_path / "other" / "short.csv"
    other.parent.mkdir()
    other.write_text("seconds,cpu_cores\n0,1\n60,2\n")
    kept = str(tmp_path / "kept")
    assert run("--trace", trace, str(other), trace, "--policy", "fixed-peak", "--save", kept)[0] == 0
    files = [tmp_path / "kept" / name for name in ("short.csv", "short-2.csv", "short-3.csv")]
    assert [path.read_text() for path in files] == [Path(path).read_text() for path in (trace, other, trace)]


def test_picture_supports_one_or_several_policies(trace: str, tmp_path: Path) -> None:
    for policies in (["--policy", "default"], ["--policy", "default", "--policy", "hpa-load"]):
        picture = tmp_path / f"picture{len(policies)}.png"
        assert run("--trace", trace, *policies, "--plot", str(picture))[0] == 0
        assert picture.read_bytes().startswith(PNG)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--trace", "/does/not/exist.csv"], "/does/not/exist.csv: No such file or directory"),
        (["--policy", "unheard-of"], "unheard-of: neither one of default, "),
    ],
)
def test_invalid_input_exits_with_2(arguments: list[str], problem: str) -> None:
    status, out, err = run(*arguments)
    assert (status, out) == (2, "")
    assert problem in err
    assert err.startswith("autoscale replay: ")
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (PermissionError(13, "Permission denied", "x.png"), (2, "", "autoscale replay: x.png: Permission denied\n")),
        (ValueError("a bug"), (1, "", "")),
    ],
)
def test_bug_of_picture_is_not_bad_input(
    error: Exception, outcome: tuple[int, str, str], trace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr("scripts.autoscale.replay.plot.draw", fail)
    assert run("--trace", trace, "--policy", "default", "--plot", "x.png") == outcome


@pytest.mark.parametrize(
    ("picture", "problem"),
    [("/does/not/exist.png", "folder '/does/not' does not exist"), ("picture.xyz", "does not end in .png, .svg, .pdf")],
)
def test_unwritable_picture_is_refused_before_the_replay(picture: str, problem: str) -> None:
    status, out, err = run("--plot", picture)
    assert (status, out) == (2, "")
    assert problem in err


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"[hold: {window", "invalid YAML: line 2"),
        (b"\xff\xfe", "'utf-8' codec"),
        (b"- hold: {window: 0}", "[0].hold.window: expected a span above zero"),
        (
            b"{resource: memory, stages: [hold: {window: 5}]}",
            "resource: expected cpu, because recordings are of CPU",
        ),
    ],
)
def test_invalid_policy_file_is_refused_in_one_line(content: bytes, problem: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_bytes(content)
    status, _, err = run("--policy", str(path))
    assert status == 2
    assert err.startswith(f"autoscale replay: {path}: {problem}")
    assert err.count("\n") == 1


def test_policy_files_have_unambiguous_names(trace: str, tmp_path: Path) -> None:
    files = [tmp_path / "mine.yaml", tmp_path / "one" / "same.yaml", tmp_path / "two" / "same.yaml"]
    files.append(tmp_path / "default.yaml")
    for path in files:
        path.parent.mkdir(exist_ok=True)
        path.write_text("- hold: {window: 60}")
    names = [str(path) for path in files]
    status, out, _ = run("--trace", trace, "--policy", "default", "default", *names, "--json")
    assert (status, list(json.loads(out)["overall"])) == (0, ["default", "mine", *names[1:]])


@pytest.mark.parametrize("problem", ["is a folder", "cannot be written"])
def test_picture_can_be_written(problem: str, trace: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was found out once all policies were replayed."""
    if problem == "is a folder":
        (tmp_path / "run.png").mkdir()
    else:
        # Root may write anywhere.
        monkeypatch.setattr(os, "access", lambda _, mode: mode != os.W_OK)
    status, out, complaint = run("--trace", trace, "--plot", str(tmp_path / "run.png"))
    assert (status, out, problem in " ".join(complaint.replace("│", "").split())) == (2, "", True)
