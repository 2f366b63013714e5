"""Whole fleets in virtual time: small, deterministic, and never over-committed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from protocol.units import Instant, Seconds
from scheduler_plugin.planner.plan import MovePlan
from scripts.autoscale.simulate.fleet import SimulatedFleet, SimulationSettings, SimulationSettingsError, make_fleet
from scripts.autoscale.simulate.migration_model import Loads, SimulatedMigrations
from scripts.autoscale.simulate.run import Run
from scripts.autoscale.simulate.simulated_vm import SimulatedVm

MINUTE = 60.0
HELD_DENIALS = (114, 78, 36, 2010.0, 240.0)
HELD_MOVES = (16, 42.478420462459326, 0.8362222222222222, 1.3523354005146628)
SMALL = SimulationSettings(nodes=4, vms=40, hours=0.5, step=Seconds(30.0), fill=0.85)


def played(settings: SimulationSettings) -> Run:
    run = Run(make_fleet(settings))
    assert list(run.execute()) == list(range(1, run.steps + 1))
    return run


@pytest.fixture(scope="module")
def day(tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, Run]:
    """A crowded fleet of which half works in the first half of a two-hour day, with and without migration."""
    folder = tmp_path_factory.mktemp("day")
    for name, load in (("early", (1.0, 0.05)), ("late", (0.05, 1.0))):
        rows = [f"{at * 600},{load[at % 12 // 6]}" for at in range(24)]
        (folder / f"{name}.csv").write_text("seconds,cpu_cores\n" + "\n".join(rows) + "\n")
    settings = replace(SMALL, nodes=3, hours=2.0, seed=5, fill=0.92, traces=(folder,))
    return played(settings), played(replace(settings, migration=False))


def test_crowded_fleet_is_never_overcommitted(day: tuple[Run, Run]) -> None:
    for run, hours in (*zip(day, (2.0, 2.0), strict=True), (played(SMALL), 0.5)):
        found = run.figures(0.0)
        assert (run.problems, found.violations, found.hours) == ([], 0, hours)
        assert found.asked == found.granted + found.denied > 0


def test_seed_determines_the_figures() -> None:
    brief = replace(SMALL, nodes=2, vms=20, hours=0.1, step=Seconds(30.0), fill=0.6)
    first, again, other = (played(replace(brief, seed=seed)).figures(0.0) for seed in (3, 3, 4))
    assert first == again
    assert first != other


def test_a_small_crowded_fleet_keeps_its_figures() -> None:
    """A change that only makes the simulation faster changes none of these."""
    run = played(replace(SMALL, nodes=6, vms=60, fill=0.9, speed=20.0, seed=3))
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
    run = Run(make_fleet(SMALL))
    for _ in zip(range(3), run.execute(), strict=False):
        pass
    found = run.figures(1.25)
    assert (found.hours, found.asked, found.migrations_per_hour, found.cpu_seconds) == (0.0, 0, 0.0, 1.2)
    assert [len(curve) for curve in run.curves.values()] == [0] * 10


@pytest.mark.parametrize(("migration", "times"), [(True, 30), (False, 1)])
def test_planner_runs_every_second_if_it_moves(migration: bool, times: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rounds, reconcile = [], SimulatedMigrations.reconcile

    def noted(self: SimulatedMigrations, now: Instant, loads: Loads) -> tuple[list[SimulatedVm], MovePlan]:
        rounds.append(now)
        return reconcile(self, now, loads)

    monkeypatch.setattr(SimulatedMigrations, "reconcile", noted)
    assert next(Run(make_fleet(replace(SMALL, migration=migration))).execute()) == 1
    assert rounds == [float(second) for second in range(times)]


def test_migration_reduces_denials(day: tuple[Run, Run]) -> None:
    moving, still = (run.figures(0.0) for run in day)
    assert (still.migrations, still.copied_gib, still.disturbed_vcpu_hours) == (0, 0.0, 0.0)
    assert still.denied_vm_seconds > 0
    assert moving.migrations > 0
    assert moving.over_watermark_percent < still.over_watermark_percent
    assert moving.denied_vm_seconds < 0.5 * still.denied_vm_seconds
    assert moving.longest_denial_seconds <= 2 * MINUTE < still.longest_denial_seconds
    # Neighbours give back first, and who has moved rests for an hour.
    assert moving.moved_again == 0


def test_vms_without_initial_room_are_reported() -> None:
    fleet = make_fleet(SMALL)
    with pytest.raises(SimulationSettingsError, match="--fill: no node has room"):
        Run(SimulatedFleet(replace(fleet.settings, nodes=1), fleet.table, fleet.total))
