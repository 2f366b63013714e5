"""Savings by sleep in a simulated fleet: VMs that are idle for long enough, with their sizes at that time."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from typer.testing import CliRunner

from protocol.units import Seconds
from scripts.autoscale.main import app
from scripts.autoscale.simulate.migration_model import LEAST_COST, NO_MIGRATION
from scripts.autoscale.simulate.simulated_groups import NO_GROUPS, SimulatedGroups
from scripts.autoscale.simulate.sleep_savings import SleepSavings
from tests.scripts.simulate.simulation_fixture import STEP, SimulationFixture


def slept(after: float, *steps: tuple[float, float], groups: SimulatedGroups = NO_GROUPS) -> SleepSavings:
    """Two VMs of 1 and 3 vCPU that need this in each step; nothing warms up."""
    fixture = SimulationFixture([4, 12], [], order=NO_MIGRATION)
    settings = replace(fixture.fleet.settings, sleep=Seconds(after), groups=groups)
    sleep = SleepSavings(replace(fixture.fleet, settings=settings), 0)
    for step, cores in enumerate(steps):
        sleep.after_step(step, np.array(cores), np.array([1.0, 3.0]))
    return sleep


def test_idle_vms_save_their_sizes() -> None:
    """One needs nothing for a minute and two steps more; the other works in between, and begins again."""
    sleep = slept(60.0, *[(0.0, 0.1)] * 3, (0.0, 1.0), *[(0.0, 0.1)] * 2)
    assert sleep.vm_hours == pytest.approx(2 * STEP / 3600)
    assert [sleep.vcpu_hours, sleep.total_vcpu_hours] == pytest.approx([1 * 2 * STEP / 3600, 4 * 6 * STEP / 3600])


def test_nothing_sleeps_unless_asked() -> None:
    assert slept(0.0, *[(0.0, 0.0)] * 9).vm_hours == 0


def test_members_of_groups_stay_awake() -> None:
    """A primary with standbys, and they, never sleep; one without is a VM like any other."""
    assert slept(60.0, *[(0.0, 0.0)] * 9, groups=SimulatedGroups(1, 1)).vm_hours == 0
    assert slept(60.0, *[(0.0, 0.0)] * 9, groups=SimulatedGroups(1, 0)).vm_hours > 0


def test_command_has_rows_for_sleep() -> None:
    """Savings hardly depend on who moves, so one order is played unless more are asked for."""
    small = ["simulate", "--nodes", "3", "--vms", "12", "--hours", "0.1"]
    runs = (["--order", NO_MIGRATION], ["--sleep", "1m"], ["--sleep", "1m", "--json"])
    plain, with_sleep, as_json = (CliRunner().invoke(app(["simulate"]), [*small, *more]) for more in runs)
    assert (plain.exit_code, with_sleep.exit_code) == (0, 0)
    assert ("sleep" in plain.stdout, "sleep saves, GiB-hours" in with_sleep.stdout) == (False, True)
    assert "asleep: below 0.25 vCPU for 1m; recordings do not show sessions" in with_sleep.stdout
    (found,) = [each["figures"] for each in json.loads(as_json.stdout)["orders"]]
    # Four GiB to each vCPU.
    assert found["order"] == LEAST_COST
    assert found["sleep_gib_hours"] == pytest.approx(4 * found["sleep_vcpu_hours"]) != 0
    assert 0 < found["sleep_percent"] < 100
