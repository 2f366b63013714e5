"""Whole fleets in virtual time: small, deterministic, and never over-committed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from protocol.units import Instant, Seconds
from scheduler_plugin.planner.plan import MovePlan
from scripts.autoscale.simulate.fleet import SimulatedFleet, SimulationSettings, SimulationSettingsError, make_fleet
from scripts.autoscale.simulate.migration_model import LEAST_COST, NO_MIGRATION, ORDERS, Loads, SimulatedMigrations
from scripts.autoscale.simulate.run import Run
from scripts.autoscale.simulate.run_statistics import Figures
from scripts.autoscale.simulate.simulated_vm import SimulatedVm

MINUTE = 60.0
HELD_DENIALS = (201, 168, 33, 1470.0, 240.0)
HELD_MOVES = (12, 20.63908082153648, 0.8188333333333334, 1.2125930005601475)
SMALL = SimulationSettings(nodes=4, vms=40, hours=0.5, step=Seconds(30.0), fill=0.85)


def played(settings: SimulationSettings, order: str) -> Run:
    run = Run(make_fleet(settings), order)
    assert list(run.execute()) == list(range(1, run.steps + 1))
    return run


def figures(settings: SimulationSettings, order: str) -> Figures:
    return played(settings, order).figures(0.0)


@pytest.fixture(scope="module")
def day(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    """A crowded fleet of which half works in the first half of a two-hour day, under each order."""
    folder = tmp_path_factory.mktemp("day")
    for name, order in (("early", (1.0, 0.05)), ("late", (0.05, 1.0))):
        rows = [f"{at * 600},{order[at % 12 // 6]}" for at in range(24)]
        (folder / f"{name}.csv").write_text("seconds,cpu_cores\n" + "\n".join(rows) + "\n")
    settings = replace(SMALL, nodes=3, hours=2.0, seed=2, fill=0.92, traces=(folder,))
    return {order: played(settings, order) for order in ORDERS}


def test_no_order_overcommits_a_crowded_fleet(day: dict[str, Run]) -> None:
    for run in day.values():
        found = run.figures(0.0)
        assert (run.problems, found.violations, found.hours) == ([], 0, 2.0)
        assert found.asked == found.granted + found.denied > 0


def test_crowded_default_fleet_is_never_overcommitted() -> None:
    run = played(SMALL, LEAST_COST)
    found = run.figures(0.0)
    assert (run.problems, found.violations, found.hours) == ([], 0, 0.5)
    assert found.asked == found.granted + found.denied > 0


def test_seed_determines_the_figures() -> None:
    brief = replace(SMALL, nodes=2, vms=20, hours=0.1, step=Seconds(30.0), fill=0.6)
    first, again, other = (figures(replace(brief, seed=seed), "random") for seed in (3, 3, 4))
    assert first == again
    assert first != other


def test_a_small_crowded_fleet_keeps_its_figures() -> None:
    """A change that only makes the simulation faster changes none of these."""
    run = played(replace(SMALL, nodes=6, vms=60, fill=0.9, speed=20.0, seed=3), LEAST_COST)
    found = run.figures(0.0)
    assert run.problems == []
    assert (
        found.asked,
        found.granted,
        found.denied,
        found.denied_vm_seconds,
        found.longest_denial_seconds,
    ) == HELD_DENIALS
    assert (found.migrations, found.copied_gib, found.mean_utilisation, found.short_percent) == pytest.approx(
        HELD_MOVES
    )


def test_before_anything_is_counted_the_figures_are_nought() -> None:
    run = Run(make_fleet(SMALL), "random")
    for _ in zip(range(3), run.execute(), strict=False):
        pass
    found = run.figures(1.25)
    assert (found.hours, found.asked, found.migrations_per_hour, found.cpu_seconds) == (0.0, 0, 0.0, 1.2)
    assert [len(curve) for curve in run.curves.values()] == [0] * 10


@pytest.mark.parametrize(("order", "times"), [("random", 30), (NO_MIGRATION, 1)])
def test_planner_runs_every_second_if_it_moves(order: str, times: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rounds, reconcile = [], SimulatedMigrations.reconcile

    def noted(self: SimulatedMigrations, now: Instant, loads: Loads) -> tuple[list[SimulatedVm], MovePlan]:
        rounds.append(now)
        return reconcile(self, now, loads)

    monkeypatch.setattr(SimulatedMigrations, "reconcile", noted)
    assert next(Run(make_fleet(SMALL), order).execute()) == 1
    assert rounds == [float(second) for second in range(times)]


def test_migration_reduces_denials(day: dict[str, Run]) -> None:
    found = {order: run.figures(0.0) for order, run in day.items()}
    still = found[NO_MIGRATION]
    assert (still.migrations, still.copied_gib, still.disturbed_vcpu_hours) == (0, 0.0, 0.0)
    assert still.denied_vm_seconds > 0
    for order in ORDERS.keys() - {NO_MIGRATION}:
        assert found[order].migrations > 0
        assert found[order].denied_vm_seconds < 0.5 * still.denied_vm_seconds
        assert found[order].longest_denial_seconds <= 3 * MINUTE < still.longest_denial_seconds
        # Neighbours give back first, and who has moved rests for an hour.
        assert found[order].moved_again == 0
    assert found[LEAST_COST].over_watermark_percent < still.over_watermark_percent


def test_vms_without_initial_room_are_reported() -> None:
    fleet = make_fleet(SMALL)
    with pytest.raises(SimulationSettingsError, match="--fill: no node has room"):
        Run(SimulatedFleet(replace(fleet.settings, nodes=1), fleet.table, fleet.total), NO_MIGRATION)
