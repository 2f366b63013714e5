"""Metrics and log of the injector: outcomes of reviews, and the state of its certificates.

Label values come from small fixed sets and never name pods or VMs.
"""

from __future__ import annotations

import logging
from typing import Final

from prometheus_client import Counter

from scheduler_plugin.injector import texts
from scheduler_plugin.program_telemetry import ProgramTelemetry

LOG: Final = logging.getLogger("autoscale.injector")


class InjectorTelemetry(ProgramTelemetry):
    """Metrics and log of one ``autoscale-injector`` process."""

    def __init__(self) -> None:
        leading, ready = "1 while this process issues certificates", "1 while pods can get an agent"
        super().__init__("autoscale_injector", LOG, "Pods that cannot be decoded", leading, ready)
        self.reviews = self.counter("reviews", "Reviews of new pods, by outcome", "outcome")
        self.renewals = Counter(
            "autoscale_certificate_renewals", "Certificates written, by outcome", ("outcome",), registry=self.registry
        )
        self._turns = self.counter("turns", "Checks of all certificates, by outcome", "outcome")
        for outcome in ("done", "failed"):  # start at zero, so that the first failure shows as an increase
            self.renewals.labels(outcome)
        self._trouble = ""
        self._problem = ""

    def turned(self, trouble: str) -> None:
        """Count a check of all certificates; ``trouble`` is the problem, if any."""
        self._turns.labels("failed" if trouble else "done").inc()
        # Log a problem once, because rounds take place every few seconds.
        if trouble and trouble != self._trouble:
            LOG.warning(texts.TURN_FAILED, extra={"reason": trouble})
        self._trouble = trouble

    def cannot_inject(self, problem: str) -> None:
        """Log once why pods cannot get an agent; ``problem`` is empty if they can."""
        if problem and problem != self._problem:
            LOG.error(texts.NO_AGENTS, extra={"reason": problem})
        self._problem = problem
