"""Metrics and log of the injector: the outcome of each review, and the state of its certificates.

Labels are small fixed sets of words, never pods or VMs.
"""

from __future__ import annotations

import logging
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest

from protocol.runtime.build_info import describe_process

LOG: Final = logging.getLogger("autoscale.injector")


class InjectorTelemetry:
    """The metrics of one ``autoscale-injector`` process and its log."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        describe_process(self.registry, "autoscale-injector")
        self._reviews = self._counter("injector_reviews", "New pods that it was asked about, by outcome", "outcome")
        self._renewals = self._counter("certificate_renewals", "Certificates written, by outcome", "outcome")
        self._turns = self._counter("injector_turns", "Looks at all certificates, by outcome", "outcome")
        self._reloads = self._counter("injector_settings_reloads", "New settings, by outcome", "outcome")
        self._leading = Gauge(
            "autoscale_injector_leading", "1 while this process makes certificates", registry=self.registry
        )
        self._ready = Gauge("autoscale_injector_ready", "1 while pods can get an agent", registry=self.registry)
        self._refused = Gauge(
            "autoscale_injector_settings_refused",
            "1 while the settings' file holds something that was refused",
            registry=self.registry,
        )
        for outcome in ("done", "failed"):  # at zero, so that the first failure shows as an increase
            self._renewals.labels(outcome)
        self._trouble = ""
        self._problem = ""

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"autoscale_{name}", text, labels, registry=self.registry)

    def page(self) -> bytes:
        """The metrics in Prometheus's text format."""
        return generate_latest(self.registry)

    def reviewed(self, outcome: str) -> None:
        """A pod was asked about."""
        self._reviews.labels(outcome).inc()

    def renewed(self, outcome: str) -> None:
        """A certificate was written, or could not be: ``done`` or ``failed``."""
        self._renewals.labels(outcome).inc()

    def turned(self, trouble: str) -> None:
        """All certificates were looked at; ``trouble`` says what went wrong."""
        self._turns.labels("failed" if trouble else "done").inc()
        # A turn comes every few seconds; the same trouble is logged once.
        if trouble and trouble != self._trouble:
            LOG.warning("certificates could not be looked after, trying again", extra={"reason": trouble})
        self._trouble = trouble

    def cannot_inject(self, problem: str) -> None:
        """Log once why no pod gets an agent; empty if they do."""
        if problem and problem != self._problem:
            LOG.error("no agents are injected", extra={"reason": problem})
        self._problem = problem

    def leads(self, leads: bool) -> None:
        """The Lease was gained or lost."""
        self._leading.set(int(leads))
        LOG.info("holds the Lease" if leads else "does not hold the Lease")

    def is_ready(self, ready: bool) -> None:
        """Records whether pods can get an agent now."""
        self._ready.set(int(ready))

    def settings_accepted(self, generation: int) -> None:
        """New settings are in force."""
        self._reloads.labels("accepted").inc()
        self._refused.set(0)
        LOG.info("settings accepted", extra={"generation": generation})

    def settings_refused(self, reason: str) -> None:
        """New settings were refused; the old ones stay."""
        self._reloads.labels("refused").inc()
        self._refused.set(1)
        LOG.error("settings refused, the old ones stay", extra={"reason": reason})
