"""Metrics of ``neonvm-network``."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import Counter, Gauge

from deploy.neonvm.devices.telemetry import PluginTelemetry
from deploy.neonvm.overlay.fence import COUNTERS


class OverlayTelemetry(PluginTelemetry):
    """Metrics of the flat network on one node."""

    def __init__(self, is_up: Callable[[], bool]) -> None:
        super().__init__("neonvm-network", "autoscale_network_registrations")
        up = Gauge(
            "autoscale_network_up",
            "1 while the flat network is up on this node and its frames are filtered",
            registry=self.registry,
        )
        up.set_function(lambda: float(is_up()))
        self._dropped = Counter(
            "autoscale_network_dropped_frames",
            "Dropped frames: from outside (foreign), with a forged source address (spoofed), to another namespace or an"
            " unknown address (misdirected), too many broadcasts (flooded)",
            ("reason",),
            registry=self.registry,
        )
        self._last_counts = dict.fromkeys(COUNTERS, 0)
        for reason in COUNTERS:
            self._dropped.labels(reason)

    def dropped(self, counts: dict[str, int]) -> None:
        """Add the increase of the kernel's counters since the last call."""
        for reason, before in self._last_counts.items():
            now = counts.get(reason, before)
            # Loading the rules resets the kernel's counters.
            self._dropped.labels(reason).inc(now - before if now >= before else now)
            self._last_counts[reason] = now
