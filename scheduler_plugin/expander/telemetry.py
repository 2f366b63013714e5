"""Metrics and log of the expander: a log line and a count for each call, and the number of nodes."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from protocol.units import Seconds
from scheduler_plugin.expander import texts
from scheduler_plugin.expander.choice import Verdict
from scheduler_plugin.expander.scaleup import ScaleUp
from scheduler_plugin.program_telemetry import SettingsTelemetry

LOG: Final = logging.getLogger("autoscale.expander")

_BUCKETS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
_SHOWN: Final = 5


class PriceExpanderTelemetry(SettingsTelemetry):
    """Metrics and log of one expander."""

    def __init__(self) -> None:
        super().__init__("autoscale_expander", LOG)
        self._answers = self.counter(
            "answers",
            "Requests of the Cluster Autoscaler, by response: chosen, all (no difference between options, or an"
            " internal error) or malformed",
            "outcome",
        )
        # Start at zero, so that the first of each outcome shows as an increase.
        for outcome in ("chosen", "all", "malformed"):
            self._answers.labels(outcome)
        self._failures = self.counter("failed_choices", "Choices whose nodes never appeared")
        self._seconds = self.histogram("answer_seconds", "Response time", _BUCKETS)
        self._nodes = self.gauge("cluster_nodes", "Nodes counted in the cluster, NaN while unknown")

    def watch_cluster_size(self, nodes: Callable[[], int | None]) -> None:
        """Export the number of nodes at every scrape."""
        self._nodes.set_function(lambda: float("nan") if (count := nodes()) is None else count)

    def answered(self, scale_up: ScaleUp, verdict: Verdict, duration: Seconds) -> None:
        """Count and log a call."""
        # If all options are returned, the autoscaler's next expander decides.
        narrowed = len(verdict.options) < len(scale_up.options)
        self._answers.labels("chosen" if narrowed else "all").inc()
        self._seconds.observe(duration)
        for line in verdict.learnt:
            self._failures.inc()
            LOG.warning(texts.FAILED_CHOICE, extra={"reason": line})
        for group, problem in list(scale_up.problems.items())[:_SHOWN]:
            LOG.warning(texts.NOT_RANKED, extra={"group": group, "reason": problem})
        details = {
            "groups": [option.group for option in verdict.options[:_SHOWN]],
            "passed_on": len(verdict.options),
            "offered": len(scale_up.options),
            "seconds": round(duration, 3),
            "why": verdict.why,
        }
        if verdict.unlisted:
            details["not_in_price_table"] = list(verdict.unlisted[:_SHOWN])
        LOG.info(texts.ANSWERED, extra=details)

    def malformed(self, problem: str) -> None:
        """Count and log a call that cannot be decoded."""
        self._answers.labels("malformed").inc()
        LOG.error(texts.MALFORMED, extra={"reason": problem})

    def failed(self, offered: int) -> None:
        """Count and log an internal error. Call it while the exception is handled."""
        self._answers.labels("all").inc()
        LOG.exception(texts.CANNOT_DECIDE, extra={"offered": offered})
