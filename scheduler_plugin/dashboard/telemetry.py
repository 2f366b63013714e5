"""Metrics and log of the dashboard program: open pages, refused sign-ins, and watches."""

from __future__ import annotations

import logging
from typing import Final

from scheduler_plugin.program_telemetry import WatchTelemetry

LOG: Final = logging.getLogger("autoscale.dashboard")


class DashboardTelemetry(WatchTelemetry):
    """Metrics and log of one ``autoscale-dashboard``."""

    def __init__(self) -> None:
        super().__init__("autoscale_dashboard", LOG, "Objects that cannot be decoded")
        self.readers = self.gauge("readers", "Open pages")
        self.sent = self.counter("sent_bytes", "Bytes of events sent to pages")
        self.sign_ins = self.counter("sign_ins", "Sign-in attempts, by outcome", "outcome")
