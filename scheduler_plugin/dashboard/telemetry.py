"""Metrics and log of the page's program: open pages, refused sign-ins, and the state of its watches."""

from __future__ import annotations

import logging
from typing import Final

from scheduler_plugin.program_telemetry import ProgramTelemetry

LOG: Final = logging.getLogger("autoscale.dashboard")


class DashboardTelemetry(ProgramTelemetry):
    """The metrics of one ``autoscale-dashboard`` and its log."""

    def __init__(self) -> None:
        super().__init__("autoscale_dashboard", LOG, "Objects that cannot be decoded")
        self.readers = self._gauge("readers", "Open pages")
        self.sent = self._counter("sent_bytes", "Bytes of events sent to pages")
        self.sign_ins = self._counter("sign_ins", "Sign-in attempts, by outcome", "outcome")
