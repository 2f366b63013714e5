"""What ``neonvm-network`` tells Prometheus."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Gauge, generate_latest

from protocol.runtime.build_info import describe_process


class Telemetry:
    """The metrics of one node's part of the network."""

    def __init__(self, is_up: Callable[[], bool]) -> None:
        self.registry = CollectorRegistry()
        describe_process(self.registry, "neonvm-network")
        up = Gauge("autoscale_network_up", "1 while the node's part of the network is made", registry=self.registry)
        up.set_function(lambda: float(is_up()))

    def page(self) -> bytes:
        """The metrics in Prometheus's text format."""
        return generate_latest(self.registry)
