"""Recordings on the grid, and the VMs that play them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from deploy.neonvm.simulated.recording_rows import RecordingError
from protocol.units import Resources, Seconds
from scripts.autoscale.replay.recording import Recording
from scripts.autoscale.simulate.fleet import SimulationSettings, make_fleet
from scripts.autoscale.simulate.recording_grid import read_grid, resample, steps_of_a_day
from scripts.autoscale.simulate.vm_table import UNITS_PER_VCPU, draw_vm_table


def recording(cores: Sequence[float], every: float = 60.0, mem: Sequence[float] | None = None) -> Recording:
    seconds = np.arange(len(cores), dtype=np.float64) * every
    recorded = None if mem is None else np.array(mem, dtype=np.float64)
    return Recording("r", seconds, np.array(cores, dtype=np.float64), recorded)


def test_steps_are_mean_shares_of_peak() -> None:
    grid = resample([recording([1, 3, 4, 4, 2, 2])], [1.0], Seconds(120.0), 1.0)
    assert grid.cores.tolist() == pytest.approx([2 / 3.98, 4 / 3.98, 2 / 3.98], abs=1e-5)
    assert (grid.base.tolist(), grid.length.tolist(), grid.weight.tolist()) == ([0], [3], [1.0])


def test_only_changed_values_are_new() -> None:
    grid = resample([recording([1, 2, 2], every=30.0)], [1.0], Seconds(15.0), 1.0)
    assert grid.cores.tolist() == [0.5, 0.5, 1.0, 1.0, 1.0, 1.0]
    assert grid.is_new.tolist() == [True, False, True, False, False, False]


def test_demand_in_last_partial_step_is_dropped() -> None:
    assert resample([recording([0] * 6 + [1], every=10.0)], [1.0], Seconds(60.0), 1.0).cores.tolist() == [0.0]


def test_played_faster_a_recording_is_shorter() -> None:
    assert resample([recording([1.0] * 8)], [1.0], Seconds(60.0), 4.0).length.tolist() == [2]
    assert (steps_of_a_day(Seconds(15.0), 1.0), steps_of_a_day(Seconds(15.0), 2.0)) == (5760, 2880)


def test_too_long_recording_is_refused() -> None:
    """A mistaken time, such as milliseconds, must not take all memory."""
    times = np.array([0.0, 1_764_547_200.0, 1_764_547_205.0])
    with pytest.raises(RecordingError, match=r"^r: 20423 days at this speed are too long to replay$"):
        resample([Recording("r", times, np.ones(3))], [1.0], Seconds(15.0), 1.0)


def test_missing_memory_follows_the_busiest_hour() -> None:
    recorded = resample([recording([1, 1, 1, 1], mem=[50, 100, 100, 100])], [1.0], Seconds(60.0), 1.0)
    assert recorded.mem.tolist() == [0.5, 1.0, 1.0, 1.0]
    spike = resample([recording([0] * 10 + [1] + [0] * 109)], [1.0], Seconds(60.0), 1.0)
    assert spike.mem.tolist() == [0.25] * 10 + [1.0] * 60 + [0.25] * 50
    lately = resample([recording([0] * 119 + [1])], [1.0], Seconds(60.0), 1.0)
    assert lately.mem.tolist() == [1.0] * 59 + [0.25] * 60 + [1.0]


def test_recordings_are_concatenated_and_weighted() -> None:
    grid = resample([recording([1, 2]), recording([3, 3, 3])], [1.0, 3.0], Seconds(60.0), 1.0)
    assert (grid.base.tolist(), grid.length.tolist(), grid.weight.tolist()) == ([0, 2], [2, 3], [0.25, 0.75])


def test_default_recordings_are_the_generated_ones() -> None:
    grid = read_grid([], Seconds(15.0), 1.0, seed=1)
    assert len(grid.base) == 5
    assert grid.weight.sum() == pytest.approx(1.0)


def test_files_have_equal_weights(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / f"{name}.csv").write_text("seconds,cpu_cores\n0,1\n60,2\n")
    assert read_grid([tmp_path], Seconds(15.0), 1.0, seed=1).weight.tolist() == [0.5, 0.5]
    (tmp_path / "a.csv").write_text("seconds;load\n")
    with pytest.raises(RecordingError, match=r"a\.csv:1: expected the columns"):
        read_grid([tmp_path], Seconds(15.0), 1.0, seed=1)


def test_vms_repeat_recordings_from_their_offset() -> None:
    grid = resample([recording([1, 2, 4])], [1.0], Seconds(60.0), 1.0)
    table = draw_vm_table(grid, 200, 1440, 4 / 24, np.random.Generator(np.random.PCG64(1)))
    assert set(table.offset.tolist()) == {0, 1, 2}
    first, _, _ = table.at(0)
    again, _, _ = table.at(3)
    before, _, _ = table.at(-3)
    assert first.tolist() == again.tolist() == before.tolist()
    assert set((first / table.cpu_peak).round(2).tolist()) == {0.25, 0.5, 1.01}


def test_daily_recordings_shift_by_days_and_hours() -> None:
    day = 96
    grid = resample([recording([1.0 + at % 7 for at in range(5 * day)], every=900.0)], [1.0], Seconds(900.0), 1.0)
    table = draw_vm_table(grid, 500, day, 2 / 24, np.random.Generator(np.random.PCG64(1)))
    beside = (table.offset + day // 2) % day - day // 2
    assert (beside.min(), beside.max()) == (-8, 8)
    assert len(set(((table.offset + day // 2) // day % 5).tolist())) == 5


def test_needs_are_bounded_whole_units() -> None:
    grid = resample([recording([1, 0.01], mem=[1, 100])], [1.0], Seconds(60.0), 1.0)
    table = draw_vm_table(grid, 300, 1440, 0.0, np.random.Generator(np.random.PCG64(1)))
    units, most = table.units_at(0), table.vcpus * UNITS_PER_VCPU
    assert ((units >= 1) & (units <= most)).all()
    by_cpu = np.ceil(table.at(0)[0] / 0.85 / 0.25)
    assert (units >= np.minimum(by_cpu, most)).all()
    assert table.bounds(0).max == Resources.parse(int(table.vcpus[0]), f"{4 * int(table.vcpus[0])}Gi")


def test_node_size_follows_peak_and_fill() -> None:
    half = make_fleet(SimulationSettings(nodes=4, vms=100, hours=24, fill=0.5))
    whole = make_fleet(SimulationSettings(nodes=4, vms=100, hours=24, fill=1.0))
    assert half.total.cpu.as_cores == pytest.approx(2 * whole.total.cpu.as_cores, rel=0.05)
    assert whole.overbooking == pytest.approx(2 * half.overbooking, rel=0.05)
    many = make_fleet(SimulationSettings(nodes=1000, vms=10, hours=1))
    assert many.total.cpu.as_cores * 0.9 >= int(many.table.vcpus.max())
    assert whole.allocatable == whole.total + Resources.parse("500m", "1Gi")
    assert whole.policy.reservable(whole.allocatable) == whole.total


def test_seed_determines_the_fleet() -> None:
    fleets = [make_fleet(SimulationSettings(nodes=3, vms=50, hours=1, seed=seed)) for seed in (1, 1, 2)]
    first, again, other = [fleet.table.at(100)[0].tolist() for fleet in fleets]
    assert first == again != other
