"""Denied agents ask again within a step, as real ones do, and a growth counts once however often they ask."""

from __future__ import annotations

import pytest

from protocol.units import Instant, Seconds
from scheduler_plugin.ledger.events import PodGone
from scripts.autoscale.simulate.fleet import SimulationSettings, make_fleet
from scripts.autoscale.simulate.migration_model import LEAST_COST, NO_MIGRATION
from scripts.autoscale.simulate.run import Run
from scripts.autoscale.simulate.simulated_vm import AgentCluster, SimulatedVm
from tests.scripts.simulate.simulation_fixture import SimulationFixture

CROWDED = SimulationSettings(nodes=2, vms=24, hours=0.2, step=Seconds(30.0), fill=0.95, speed=20.0, seed=2)


def counted(fixture: SimulationFixture) -> tuple[int, int, int]:
    cluster = fixture.cluster
    return cluster.growths, cluster.granted, cluster.denied


def asks(fixture: SimulationFixture, vm: SimulatedVm, cores: float, times: int = 1) -> tuple[int, int, int]:
    """The agent needs this much and sends a request every three seconds. Returns the growths counted so far."""
    fixture.cores[vm.index] = cores
    for _ in range(times):
        fixture.now = Instant(fixture.now + 3.0)
        fixture.run_agent(vm)
        claim = fixture.cluster.ledger.claims[vm.pod]
        assert claim.vm is not None
        assert claim.vm.last_message_at == fixture.now
    return counted(fixture)


def test_repeated_denied_request_is_one_growth() -> None:
    fixture = SimulationFixture([40, 10], [12], order="none")
    vm = fixture.vms[1]
    assert asks(fixture, vm, 6.0, times=5) == (1, 0, 1)
    assert asks(fixture, vm, 8.0, times=5) == (2, 0, 2), "it needs more than it was denied"
    fixture.cluster.ledger.apply(PodGone(fixture.vms[0].pod), fixture.now)
    assert asks(fixture, vm, 8.0) == (2, 0, 2), "it was denied at first"
    assert asks(fixture, vm, 14.0) == (3, 1, 2)


def moments_of_denied(order: str, monkeypatch: pytest.MonkeyPatch) -> set[float]:
    """The seconds of a step of 30 in which agents that were denied act."""
    moments, act = set(), SimulatedVm.act

    def noted(self: SimulatedVm, cluster: AgentCluster, now: Instant, jitter: float) -> None:
        if self.is_denied:
            moments.add(now % 30.0)
        act(self, cluster, now, jitter)

    monkeypatch.setattr(SimulatedVm, "act", noted)
    run = Run(make_fleet(CROWDED), order)
    assert len(list(run.execute())) == run.steps
    assert run.problems == []
    return moments


@pytest.mark.parametrize("order", [LEAST_COST, NO_MIGRATION])
def test_denied_agents_ask_every_three_seconds(order: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert moments_of_denied(order, monkeypatch) == {float(second) for second in range(0, 30, 3)}
