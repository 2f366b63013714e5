"""The picture of a demo: how a report is drawn, and the message if nothing can be drawn."""

from importlib import import_module
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import msgspec
import pytest
from typer.testing import CliRunner

from protocol.units import Resources, Seconds
from scripts.autoscale.demonstration.report import LoadPoint, Observations, Report, report
from scripts.autoscale.main import app


def picture() -> Any:
    """The module; imported by the tests that draw, because matplotlib takes a second."""
    return import_module("scripts.autoscale.demonstration.pictures")


def draw(run: Report, path: Path) -> None:
    picture().draw(run, path)


SMALL, LARGE = Resources.parse(1, "256Mi"), Resources.parse(4, "1Gi")


def a_good_run() -> Report:
    seen = Observations(guests="QEMU guests (emulated)", load_began=Seconds(10.0), load_ended=Seconds(30.0))
    for at, size in ((2.0, SMALL), (12.5, LARGE), (45.0, SMALL)):
        seen.record(Seconds(at), size)
    seen.tps += [LoadPoint(11.0, 120.0), LoadPoint(12.0, 300.0)]
    seen.transactions = 4200
    return report(seen, Seconds(50.0))


@pytest.fixture(scope="module")
def good_picture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The picture of a good run, drawn once for all tests."""
    path = tmp_path_factory.mktemp("pictures") / "demo.svg"
    draw(a_good_run(), path)
    return path


def words(picture: Path) -> set[str]:
    root = ElementTree.parse(picture).getroot()  # noqa: S314 - we wrote it
    return {"".join(each.itertext()).strip() for each in root.iter("{http://www.w3.org/2000/svg}text")}


def test_picture_shows_the_outcome(good_picture: Path) -> None:
    expected = {
        "One postgres VM (QEMU guests): 4,200 transactions, 0 failed",
        "load for 20 s",
        "more CPU after 2.5 s",
        "vCPU",
        "memory, GiB",
        "pgbench, tps",
        "seconds since the load began",
    }
    assert expected <= words(good_picture)


def lines_of_transactions(path: Path) -> int:
    """Number of lines of that colour with corners: a line from point to point."""
    paths = ElementTree.parse(path).getroot().iter("{http://www.w3.org/2000/svg}path")  # noqa: S314 - we wrote it
    leaf = picture().LEAF
    return sum(
        leaf in each.get("style", "") and " " in each.get("d", "") and "L" in each.get("d", "") for each in paths
    )


def test_a_second_load_is_another_line(tmp_path: Path, good_picture: Path) -> None:
    once = a_good_run()
    again = [*once.load, LoadPoint(60.0, 200.0), LoadPoint(61.0, 210.0)]
    draw(msgspec.structs.replace(once, load=again), tmp_path / "again.svg")
    assert (lines_of_transactions(good_picture), lines_of_transactions(tmp_path / "again.svg")) == (1, 2)


def test_equal_reports_make_equal_files(tmp_path: Path, good_picture: Path) -> None:
    draw(a_good_run(), tmp_path / "other.svg")
    assert (tmp_path / "other.svg").read_bytes() == good_picture.read_bytes()


def test_the_name_says_the_format(tmp_path: Path) -> None:
    draw(a_good_run(), tmp_path / "demo.png")
    assert (tmp_path / "demo.png").read_bytes().startswith(b"\x89PNG")


def test_simulated_run_without_growth_is_drawn(tmp_path: Path) -> None:
    seen = Observations(guests="simulated guests", is_simulated=True, load_began=Seconds(3.0), load_ended=Seconds(9.0))
    seen.record(Seconds(1.0), SMALL)
    draw(report(seen, Seconds(12.0)), tmp_path / "demo.svg")
    said = words(tmp_path / "demo.svg")
    assert "simulated guests replay a load: no transactions were run" in said
    assert not [each for each in said if each.startswith("more CPU")]


@pytest.mark.parametrize(
    ("seen", "why"),
    [
        (Observations(), "no picture: the run ended before the load"),
        (Observations(load_problem="pgbench is not installed"), "no picture: pgbench is not installed"),
        (Observations(load_began=Seconds(1.0)), "no picture: the run ended before the load"),
    ],
)
def test_run_without_load_has_no_picture(seen: Observations, why: str, tmp_path: Path) -> None:
    with pytest.raises(picture().NothingToDrawError) as refused:
        draw(report(seen, Seconds(5.0)), tmp_path / "demo.svg")
    assert str(refused.value) == why
    assert not (tmp_path / "demo.svg").exists()


@pytest.mark.parametrize(
    ("option", "file", "complaint"),
    [
        ("--picture", "missing/demo.svg", "does not exist"),
        ("--report", "missing/demo.json", "does not exist"),
        ("--picture", "demo.txt", "does not end in .png, .svg, .pdf"),
    ],
)
def test_unwritable_picture_is_refused_at_start(option: str, file: str, complaint: str, tmp_path: Path) -> None:
    result = CliRunner().invoke(app(), ["demo", option, str(tmp_path / file)], env={"COLUMNS": "300"})
    assert result.exit_code == 2
    assert complaint in result.output
