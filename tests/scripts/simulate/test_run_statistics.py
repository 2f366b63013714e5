"""Statistics of a run, compared with figures worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec.structs import asdict

from scheduler_plugin.ledger.events import PodGone
from scripts.autoscale.simulate.run_statistics import Figures, RunStatistics
from scripts.autoscale.simulate.simulated_vm import NeighbourShrinks
from tests.scripts.simulate.simulation_fixture import SETTLE, STEP, SimulationFixture

WARM_UP = 2
MINUTE = 1 / 60
"""Four steps, in hours."""


def begun(fixture: SimulationFixture) -> RunStatistics:
    """The account of a fixture that has stood still for the steps that are not counted."""
    record = RunStatistics(fixture.fleet, fixture.cluster, fixture.moves, fixture.vms, WARM_UP)
    noted(fixture, record, WARM_UP)
    return record


def noted(fixture: SimulationFixture, record: RunStatistics, steps: int, stuck: int = 0) -> Figures:
    for _ in range(steps):
        fixture.step()
        record.after_step(fixture.cluster.take_touched(), fixture.vms, np.array(fixture.cores), stuck)
    return record.figures("an order", 3, 1.26)


def test_denials_and_shortages_are_integrated() -> None:
    fixture = SimulationFixture([40, 10], [12], order="none")
    record = begun(fixture)
    fixture.cores = [10.0, 8.0, 2.0]
    fixture.run_agent(fixture.vms[1])  # wants 48 units, of which 24 are there
    assert asdict(noted(fixture, record, 4, stuck=1)) == pytest.approx(
        {
            "order": "an order",
            "hours": 0.017,
            "asked": 1,
            "granted": 0,
            "in_place_percent": 0.0,
            "denied": 1,
            "denied_vm_seconds": 60.0,
            "unfairness_percent": 100.0,
            "worst_vm": "vm-1",
            "longest_denial_seconds": 60.0,
            "denied_vcpu_hours": 24 / 4 * MINUTE,
            "shrinks": 0,
            "regrown_percent": 0.0,
            "migrations": 0,
            "migrations_per_hour": 0.0,
            "moved_again": 0,
            "failed": 0,
            "copied_gib": 0.0,
            "disturbed_vcpu_hours": 0.0,
            "stuck_node_hours": MINUTE,
            "over_watermark_node_hours": MINUTE,
            "over_watermark_percent": 50.0,
            "mean_utilisation": (1 + 12 / 64) / 2,
            "peak_utilisation": (1 + 12 / 64) / 2,
            "short_percent": 100 * 2 / 20,
            "violations": 3,
            "cpu_seconds": 1.3,
            "groups": 0,
            "replicas": 0,
            "sharing_percent": 0.0,
            "asleep_percent": 0.0,
            "sleep_vcpu_hours": 0.0,
            "sleep_gib_hours": 0.0,
            "sleep_percent": 0.0,
        }
    )


def test_ended_denial_stops_counting() -> None:
    fixture = SimulationFixture([40, 10], [12], order="none")
    record = begun(fixture)
    fixture.cores[1] = 8.0
    fixture.run_agent(fixture.vms[1])
    noted(fixture, record, 1)
    fixture.cluster.ledger.apply(PodGone(fixture.vms.pop(0).pod), fixture.now)
    fixture.run_agent(fixture.vms[0])
    assert not fixture.vms[0].is_denied
    found = noted(fixture, record, 3)
    assert (found.denied_vm_seconds, found.longest_denial_seconds) == (15.0, 15.0)


def test_worst_vm_is_named() -> None:
    fixture = SimulationFixture([40, 10], [60, 2], order="none")
    record = begun(fixture)
    fixture.cores = [10.0, 8.0, 10.0, 4.0]
    fixture.run_agent(fixture.vms[3])
    noted(fixture, record, 2)
    fixture.run_agent(fixture.vms[1])
    measured = noted(fixture, record, 1)
    assert (measured.worst_vm, measured.unfairness_percent) == ("vm-3", 75.0)


def test_shrinks_count_after_warm_up() -> None:
    fixture = SimulationFixture([30, 20], [4], order="none")
    fixture.vms[1].shrinks, fixture.cluster.growths, fixture.cluster.in_place = NeighbourShrinks(7, 5), 10, 1
    record = begun(fixture)
    fixture.vms[0].shrinks, fixture.cluster.growths, fixture.cluster.in_place = NeighbourShrinks(4, 1), 14, 4
    measured = noted(fixture, record, 1)
    assert (measured.shrinks, measured.regrown_percent, measured.in_place_percent) == (4, 25.0, 75.0)


def test_denial_from_warm_up_counts_from_its_end() -> None:
    fixture = SimulationFixture([40, 10], [12], order="none")
    record = RunStatistics(fixture.fleet, fixture.cluster, fixture.moves, fixture.vms, WARM_UP)
    fixture.cores[1] = 8.0
    fixture.run_agent(fixture.vms[1])
    assert noted(fixture, record, WARM_UP).longest_denial_seconds == 0.0
    assert noted(fixture, record, 2).longest_denial_seconds == 30.0


def test_migrations_are_counted_from_when_they_begin() -> None:
    fixture = SimulationFixture([30, 10], [4], order="least-loaded")
    fixture.cores = [5.0, 0.5, 0.5]
    for _ in range(round(SETTLE / STEP) - 1):
        fixture.step()
    record = RunStatistics(fixture.fleet, fixture.cluster, fixture.moves, fixture.vms, 1)
    found = noted(fixture, record, 5)
    assert (found.migrations, found.failed, found.copied_gib) == (1, 0, 1.0)
    assert found.migrations_per_hour == pytest.approx(60.0)
    assert found.disturbed_vcpu_hours == pytest.approx(0.5 * 9.0 / 3600)
    assert record.curves.since(1)["migrations"].tolist() == [1.0] * 4
    assert record.curves.since(1)["over_watermark"].tolist() == [1.0, 0.0, 0.0, 0.0]
