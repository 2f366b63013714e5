"""Metrics of every program, from the objects that render its metrics page."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric

from agent.assignments import OwnVm
from agent.exporter import registry_of
from agent.supervisor import Supervisor
from deploy.kube.informer import Informer
from deploy.neonvm.devices.telemetry import DeviceTelemetry as DevicesTelemetry
from deploy.neonvm.overlay.telemetry import OverlayTelemetry as NetworkTelemetry
from deploy.neonvm.service.telemetry import VmControllerTelemetry as ControllerTelemetry
from protocol.kubernetes.resources import VIRTUAL_MACHINES
from protocol.runtime.tls_metrics import watch_tls
from protocol.units import Instant
from scheduler_plugin.dashboard.telemetry import DashboardTelemetry
from scheduler_plugin.expander.telemetry import PriceExpanderTelemetry as ExpanderTelemetry
from scheduler_plugin.groups.telemetry import GroupsTelemetry
from scheduler_plugin.injector.telemetry import InjectorTelemetry
from scheduler_plugin.telemetry import Telemetry as SchedulerTelemetry
from tests.agent.core.story import POLICY
from tests.agent.fake_ports import ASSIGNMENT, RunnerFixture

WITH_CERTIFICATES = ("autoscaler-agent", "autoscale-scheduler", "autoscale-expander")
"""Programs that add to their metrics how long their certificates last, where they begin to serve."""


@dataclass(frozen=True, slots=True)
class Exposed:
    """One metric as Prometheus knows it: a counter's name ends in ``_total``."""

    name: str
    kind: str
    labels: frozenset[str]


def registries() -> dict[str, CollectorRegistry]:
    """The registry of each program that has metrics, by the program's name."""
    fixture = RunnerFixture()
    supervisor = Supervisor(OwnVm(ASSIGNMENT), lambda *_: fixture.runner, POLICY, fixture.clock)
    supervisor.runners[ASSIGNMENT] = fixture.runner
    scheduler = SchedulerTelemetry(lambda: Instant(0.0))
    scheduler.leads(True)
    vms: Any = Informer(None, VIRTUAL_MACHINES, fixture.clock)  # type: ignore[arg-type]  # it is never run
    found = {
        "autoscaler-agent": registry_of(supervisor, fixture.clock, {"alone": 0, "together": 0}),
        "autoscale-scheduler": scheduler.registry,
        "autoscale-groups": GroupsTelemetry().registry,
        "autoscale-dashboard": DashboardTelemetry().registry,
        "autoscale-expander": ExpanderTelemetry().registry,
        "autoscale-injector": InjectorTelemetry().registry,
        "neonvm-controller": ControllerTelemetry(vms, lambda: True).registry,
        "neonvm-network": NetworkTelemetry(lambda: True).registry,
        "neonvm-devices": DevicesTelemetry((), tuple, lambda: True).registry,
    }
    for program in WITH_CERTIFICATES:
        watch_tls(found[program], [])
    return found


def _families(registry: CollectorRegistry) -> Iterator[tuple[Metric, frozenset[str]]]:
    collectors: dict[Any, Any] = registry._collector_to_names
    for collector in collectors:
        own = getattr(collector, "_labelnames", None)
        for family in collector.collect():
            yield family, frozenset(own if own is not None else getattr(family, "_labelnames", ()))


@cache
def exposed() -> dict[str, dict[str, Exposed]]:
    """Every metric of each program by name; ``process_*`` aside, which are not ours."""
    found: dict[str, dict[str, Exposed]] = {}
    for program, registry in registries().items():
        for family, labels in _families(registry):
            name = f"{family.name}_total" if family.type == "counter" else family.name
            if not name.startswith("process_"):
                found.setdefault(program, {})[name] = Exposed(name, family.type, labels)
    return found
