"""``make bench-fleet``: its rows, their targets, and the choice of the simulated cases."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest
import typer
from typer.testing import CliRunner

from scripts.autoscale.simulate.fleet import SimulationSettings
from scripts.autoscale.simulate.run_statistics import Figures
from scripts.bench import fleet_bench
from scripts.bench.fleet_bench import FAST, OWN_SPEED, BenchRow, FleetCase, header

NONE: dict[str, object] = dict.fromkeys(Figures.__struct_fields__, 0) | {"order": "least-cost", "worst_vm": "vm-7"}


def figures(**values: float) -> Figures:
    return msgspec.convert(NONE | values, Figures)


def test_row_shows_means_and_aims() -> None:
    row = BenchRow(
        FleetCase("recorded", OWN_SPEED, 0.9),
        [
            figures(migrations_per_hour=10, denied_vcpu_hours=3, longest_denial_seconds=60, in_place_percent=99.95),
            figures(migrations_per_hour=14, denied_vcpu_hours=4, longest_denial_seconds=90, in_place_percent=99.97),
        ],
    )
    assert [cell.strip() for cell in str(row).split("  ") if cell] == [
        "recorded",
        "own speed",
        "0.9",
        "12.0 <= 15",
        "3.50 > 2.5",
        "0.0000 <= 0.01",
        "90 <= 300",
        "99.960",
        "0.0",
        "0.0",
    ]
    assert row.missed() == ["recorded, own speed, fill 0.9: denied vCPU-h 3.50 > 2.5"]
    assert len(row.met()) == 3
    assert len(header()) == len(str(row))


def test_aim_of_a_sum_follows_the_part() -> None:
    case = FleetCase("generated", FAST, 0.7)
    whole, half = (BenchRow(case, [figures(denied_vcpu_hours=0.3)], part) for part in (1.0, 0.5))
    assert (len(whole.missed()), half.missed()) == (0, ["generated, x20, fill 0.7: denied vCPU-h 0.30 > 0.2"])


@pytest.mark.parametrize(("share", "sign"), [(99.979, "<"), (99.98, ">=")])
def test_growths_in_place_have_a_least(share: float, sign: str) -> None:
    row = BenchRow(FleetCase("generated", OWN_SPEED, 0.7), [figures(in_place_percent=share)])
    assert f"{share:.3f} {sign} 99.98" in str(row)


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch) -> list[SimulationSettings]:
    """The settings of every fleet that was played: by a fake, in this process."""
    settings: list[SimulationSettings] = []

    def play(one: SimulationSettings) -> Figures:
        settings.append(one)
        return figures(migrations_per_hour=20, violations=int(one.fill == 1.0))

    monkeypatch.setattr(fleet_bench, "_simulate", play)
    monkeypatch.setattr(fleet_bench, "ProcessPoolExecutor", lambda _: ThreadPoolExecutor(1))
    return settings


def bench(*arguments: str) -> tuple[int, str, str]:
    app = typer.Typer()
    app.command()(fleet_bench.bench_fleet)
    result = CliRunner().invoke(app, arguments, env={"COLUMNS": "300"})
    return result.exit_code, result.stdout, result.stderr


def test_narrowed_bench(played: list[SimulationSettings], tmp_path: Path) -> None:
    trace = tmp_path / "load.csv"
    trace.write_text("seconds,cpu_cores\n0,1\n60,2\n")
    narrowed = ("--seed", "5", "--fill", "0.9", "--part", "0.5", "--no-generated", "--trace", str(trace))
    status, out, progress = bench(*narrowed)
    assert [(one.seed, one.fill, one.speed, one.hours, one.traces) for one in played] == [
        (5, 0.9, 1.0, 6.0, (trace,)),
        (5, 0.9, 20.0, 1.5, (trace,)),
    ]
    assert (status, out.splitlines()[3:]) == (
        0,
        ["Targets met: 7; missed: 1", "  recorded, own speed, fill 0.9: moves an hour 20.0 > 15"],
    )
    assert progress.splitlines()[-1] == "2 of 2 after 0 min: recorded, x20, fill 0.9, seed 5"


def test_over_commitment_fails_whole_bench(played: list[SimulationSettings]) -> None:
    status, out, _ = bench()
    assert (status, len(played)) == (1, 3 * 4 * 2)
    assert [line.split("  ")[0] for line in out.splitlines()].count("generated") == 8


def test_unreadable_recording_ends_bench(played: list[SimulationSettings], tmp_path: Path) -> None:
    status, _, complaint = bench("--trace", str(tmp_path / "none.csv"))
    assert (status, played) == (2, [])
    assert complaint.startswith("bench-fleet: ")
