"""Metrics of programs with a device plugin, and of ``neonvm-devices``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest

from protocol.runtime.build_info import describe_process


class PluginTelemetry:
    """Metrics of ``program``, which has a device plugin; ``registrations`` is the name of their counter."""

    def __init__(self, program: str, registrations: str) -> None:
        self.registry = CollectorRegistry()
        describe_process(self.registry, program)
        what = "Registrations with the kubelet, by outcome"
        self._registrations = Counter(registrations, what, ("outcome",), registry=self.registry)

    def registered(self, outcome: str) -> None:
        """Count a registration; ``outcome`` is ``done`` or ``failed``."""
        self._registrations.labels(outcome).inc()

    def page(self) -> bytes:
        """The metrics page in Prometheus' text format."""
        return generate_latest(self.registry)


class DeviceTelemetry(PluginTelemetry):
    """Metrics of the device plugin on one node; ``names`` are the devices that it may grant."""

    def __init__(
        self, names: Sequence[str], devices: Callable[[], Sequence[str]], is_registered: Callable[[], bool]
    ) -> None:
        super().__init__("neonvm-devices", "autoscale_devices_registrations")
        what = "1 if pods on this node get the device"
        present = Gauge("autoscale_devices_present", what, ("device",), registry=self.registry)
        for name in names:
            present.labels(name).set_function(partial(lambda path: float(path in devices()), f"/dev/{name}"))
        registered = Gauge(
            "autoscale_devices_registered", "1 while the kubelet offers the resource", registry=self.registry
        )
        registered.set_function(lambda: float(is_registered()))
        self._allocations = Counter(
            "autoscale_devices_allocations", "Containers that got devices", registry=self.registry
        )

    def allocated(self, containers: int) -> None:
        """Count ``containers`` that got the node's devices."""
        self._allocations.inc(containers)
