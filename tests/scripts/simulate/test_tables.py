"""Output for users and programs: the table's rows, the document, and the picture."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest
from rich.console import Console

from scripts.autoscale.simulate.migration_model import ORDERS
from scripts.autoscale.simulate.run_statistics import CURVES, Figures
from scripts.autoscale.simulate.simulated_groups import SimulatedGroups
from scripts.autoscale.simulate.tables import (
    GROUP_ROWS,
    POINTS,
    ROWS,
    SimulationOutcome,
    as_json,
    describe,
    downsampled,
    print_tables,
)
from tests.scripts.simulate.simulation_fixture import a_fleet

FLEET = a_fleet(4)
GROUPS = SimulatedGroups(1, 1)
NUMBERED: dict[str, object] = {name: number for number, name in enumerate(Figures.__struct_fields__[1:], start=1)}
NUMBERED["worst_vm"] = "vm-1"
NONE = dict.fromkeys(NUMBERED, 0) | {"worst_vm": ""}


def figures(order: str, steps: int) -> Figures:
    return msgspec.convert({"order": order} | (NUMBERED if steps else NONE) | {"hours": steps / 240}, Figures)


def outcome(order: str, *problems: str, steps: int = 240) -> SimulationOutcome:
    return SimulationOutcome(
        figures(order, steps), {name: np.arange(steps, dtype=np.float64) for name in CURVES}, problems
    )


def printed(*outcomes: SimulationOutcome) -> str:
    out = io.StringIO()
    print_tables(Console(file=out, width=120), FLEET, outcomes)
    return out.getvalue()


def test_table_has_a_column_per_order() -> None:
    lines = printed(outcome("random"), outcome("none")).splitlines()
    assert lines[0] == "4 VMs on 2 nodes of 16 vCPU and 64 GiB, VM maximums 2.00 times that, seed 1; 1 h counted"
    cells = [[cell.strip() for cell in line.strip("│┃").replace("┃", "│").split("│")] for line in lines[2:]]
    assert cells[0] == ["", "random", "none"]
    assert [row[0] for row in cells[2:-1]] == [name for name, _ in ROWS]
    assert cells[2][1:] == ["2", "2"]


def test_table_fits_100_columns() -> None:
    out, orders = io.StringIO(), [outcome(order) for order in ORDERS]
    print_tables(Console(file=out, width=100), replace(FLEET, settings=replace(FLEET.settings, groups=GROUPS)), orders)
    lines = out.getvalue().splitlines()[1:]
    assert len(lines) == len(ROWS) + len(GROUP_ROWS) + 4
    assert max(map(len, lines)) <= 100


def test_violations_are_listed_below_the_table() -> None:
    text = printed(outcome("random", *(f"{at} s: broken" for at in range(1000))), outcome("none"))
    assert text.endswith("random: 9 s: broken\n")
    assert text.count("broken") == 10


def test_run_without_counted_steps_is_printed() -> None:
    assert "0 h counted" in printed(outcome("random", steps=0))
    assert "0 h counted" in printed()


def test_the_document_holds_settings_figures_problems_and_curves() -> None:
    found = json.loads(as_json(FLEET, [outcome("random", "broken", steps=576)], finished=True))
    (order,) = found.pop("orders")
    assert found == {
        "finished": True,
        "nodes": 2,
        "vms": 4,
        "node": {"vCPUs": 16.0, "mem": "64Gi"},
        "overbooking": 2.0,
        "seed": 1,
        "step_seconds": 15.0,
        "watermark": 0.5,
    }
    assert order["figures"] == {"order": "random"} | NUMBERED | {"hours": 2.4}
    assert order["problems"] == ["broken"]
    assert list(order["curves"]) == list(CURVES)
    assert order["curves"]["denied"] == [2 * at + 0.5 for at in range(POINTS)]


@pytest.mark.parametrize(
    ("values", "points", "middles", "means"),
    [
        ([], 3, [], []),
        ([1.0, 2.0], 3, [0.5, 1.5], [1.0, 2.0]),
        ([1.0, 3.0, 5.0, 7.0], 2, [0.5, 1.5], [2.0, 6.0]),
        ([1.0, 2.0, 4.0], 2, [0.5, 1.5], [1.0, 3.0]),
    ],
)
def test_curve_is_downsampled_to_means(
    values: list[float], points: int, middles: list[float], means: list[float]
) -> None:
    at, found = downsampled(np.array(values), 2.0, points)
    assert (at.tolist(), found.tolist()) == (middles, means)


def draw(outcomes: list[SimulationOutcome], path: Path) -> None:
    from scripts.autoscale.simulate import plot  # noqa: PLC0415 - matplotlib takes a second to import

    plot.draw(FLEET, outcomes, path)


def test_a_picture_is_drawn_of_what_was_counted(tmp_path: Path) -> None:
    draw([outcome("least-loaded"), outcome("none", steps=0)], tmp_path / "day.svg")
    assert (tmp_path / "day.svg").stat().st_size > 10_000


def test_picture_of_empty_run_is_drawn(tmp_path: Path) -> None:
    draw([outcome("none", steps=0)], tmp_path / "day.png")
    assert (tmp_path / "day.png").read_bytes().startswith(b"\x89PNG")


def test_the_fleet_is_described_in_one_line() -> None:
    assert "\n" not in describe(FLEET)
