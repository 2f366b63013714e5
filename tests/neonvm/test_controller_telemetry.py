"""Metrics of ``neonvm-controller``: present phases, and ends of guests as seen by the leader."""

from __future__ import annotations

from typing import Any

from deploy.kube.informer import Informer
from deploy.neonvm.service.telemetry import VmControllerTelemetry
from protocol.kubernetes.objects import Json
from protocol.kubernetes.resources import VIRTUAL_MACHINES
from tests.fake_clock import FakeClock


class Fleet:
    """VMs that change their phases under a controller that ``leads``."""

    def __init__(self, *, leads: bool = True) -> None:
        self.leads = leads
        nothing: Any = None
        self._vms = Informer(nothing, VIRTUAL_MACHINES, FakeClock())
        self.registry = VmControllerTelemetry(self._vms, lambda: self.leads).registry

    def shows(self, name: str, *phases: str) -> None:
        """The watch says that a VM went through these phases."""
        for phase in phases:
            vm: Json = {"metadata": {"name": name, "namespace": "db"}, "status": {"phase": phase}}
            self._vms._facts.learn(vm)

    def sleeps(self, *states: str, seconds: float = 0.0) -> None:
        """The watch says that the last order of one VM came to these states, a second apart."""
        for second, state in enumerate(states):
            sleep: Json = {"state": state, "since": f"2026-01-01T00:00:0{second}Z", "seconds": seconds}
            vm: Json = {"metadata": {"name": "vm-1", "namespace": "db"}, "status": {"phase": "Running", "sleep": sleep}}
            self._vms._facts.learn(vm)
            self._vms._facts.learn({**vm, "status": {"phase": "Waking", "sleep": sleep}})

    def sample(self, name: str, **labels: str) -> float | None:
        return self.registry.get_sample_value(f"autoscale_neonvm_{name}", labels)

    def ended(self, phase: str) -> float | None:
        return self.registry.get_sample_value("autoscale_neonvm_guests_ended_total", {"phase": phase})

    def count(self, phase: str) -> float | None:
        return self.registry.get_sample_value("autoscale_neonvm_vms", {"phase": phase})


def test_guest_end_is_counted_per_restart() -> None:
    fleet = Fleet()
    fleet.shows("vm-1", "Running", "Failed", "Failed", "Pending", "Running", "Failed")
    fleet.shows("vm-2", "Running", "Succeeded")
    assert (fleet.ended("failed"), fleet.ended("succeeded")) == (2.0, 1.0)
    assert (fleet.count("failed"), fleet.count("running")) == (1.0, 0.0)


def test_earlier_ends_are_not_counted() -> None:
    fleet = Fleet()
    fleet.shows("vm-1", "Failed")
    assert fleet.ended("failed") == 0.0


def test_a_standby_counts_no_ends() -> None:
    fleet = Fleet(leads=False)
    fleet.shows("vm-1", "Running", "Failed")
    assert fleet.ended("failed") == 0.0
    assert fleet.registry.get_sample_value("autoscale_neonvm_leading") == 0.0


def test_sleeps_and_wakes_are_counted_once() -> None:
    fleet = Fleet()
    fleet.sleeps("Awake", "Refused", "Refused", "Asleep", "Waking", "Awake", seconds=0.25)
    assert fleet.sample("sleep_orders_total", outcome="refused") == 2.0
    assert fleet.sample("sleep_orders_total", outcome="asleep") == 1.0
    assert fleet.sample("wake_seconds_count", end="awake") == 1.0
    assert fleet.sample("wake_seconds_sum", end="awake") == 0.25
    assert fleet.count("waking") == 1.0


def test_sleeper_that_lost_its_pod_was_not_woken() -> None:
    fleet = Fleet()
    fleet.sleeps("Asleep", "Restarted")
    assert fleet.sample("wake_seconds_count", end="restarted") == 0.0
