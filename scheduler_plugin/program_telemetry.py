"""Metrics and log lines shared by this package's programs: watches, unreadable objects, and settings.

Label values are kinds and small fixed sets.
"""

from __future__ import annotations

from collections.abc import Sequence
from logging import Logger
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from protocol.kubernetes.pages import Unreadable
from protocol.runtime.build_info import describe_process

KIND_MISSING: Final = "the cluster lacks this optional kind; continuing without it until it is installed"
LISTED: Final = "1 once the cluster has been listed"


class ProcessTelemetry:
    """The registry and log of a process; metric names start with ``prefix``."""

    def __init__(self, prefix: str, log: Logger) -> None:
        self.registry = CollectorRegistry()
        # Metric names have underscores, program names have hyphens.
        describe_process(self.registry, prefix.replace("_", "-"))
        self._prefix = prefix
        self._log = log

    def counter(self, name: str, text: str, *labels: str) -> Counter:
        """Create a counter."""
        return Counter(f"{self._prefix}_{name}", text, labels, registry=self.registry)

    def gauge(self, name: str, text: str, *labels: str) -> Gauge:
        """Create a gauge."""
        return Gauge(f"{self._prefix}_{name}", text, labels, registry=self.registry)

    def histogram(self, name: str, text: str, buckets: Sequence[float]) -> Histogram:
        """Create a histogram."""
        return Histogram(f"{self._prefix}_{name}", text, registry=self.registry, buckets=buckets)

    def page(self) -> bytes:
        """The metrics in Prometheus's text format."""
        return generate_latest(self.registry)


class SettingsTelemetry(ProcessTelemetry):
    """Adds metrics and log lines of a program's settings."""

    def __init__(self, prefix: str, log: Logger) -> None:
        super().__init__(prefix, log)
        self.reloads = self.counter("settings_reloads", "Settings reloads, by outcome", "outcome")
        self.refused = self.gauge("settings_refused", "1 while the settings file is invalid")

    def settings_accepted(self, generation: int) -> None:
        """New settings are active; see ``SettingsReport``."""
        self.reloads.labels("accepted").inc()
        self.refused.set(0)
        self._log.info("settings accepted", extra={"generation": generation})

    def settings_refused(self, reason: str) -> None:
        """New settings were rejected, the old ones stay; see ``SettingsReport``."""
        self.reloads.labels("refused").inc()
        self.refused.set(1)
        self._log.error("settings refused; keeping the previous ones", extra={"reason": reason})


class WatchTelemetry(ProcessTelemetry):
    """Adds metrics of watches. ``unreadable`` and ``ready`` are help texts of those gauges."""

    def __init__(self, prefix: str, log: Logger, unreadable: str, ready: str = LISTED) -> None:
        super().__init__(prefix, log)
        self.ready = self.gauge("ready", ready)
        self.watch_errors = self.counter("watch_failures", "Lists and watches that failed", "kind")
        self.unreadable = self.gauge("unreadable_objects", unreadable, "kind")
        self.missing = self.gauge("watch_missing", "1 for an optional kind that the cluster lacks", "kind")

    def watch_delivered(self, kind: str) -> None:
        """See ``WatchReport``."""

    def watch_missing(self, kind: str) -> None:
        """See ``WatchReport``."""
        self.missing.labels(kind).set(1)
        self._log.info(KIND_MISSING, extra={"kind": kind})

    def object_unreadable(self, kind: str, unreadable: Unreadable) -> None:
        """See ``WatchReport``."""
        details = {"kind": kind, "object": str(unreadable.name), "reason": unreadable.reason}
        self._log.error("cannot decode object; keeping its last readable version", extra=details)

    def watch_listed(self, kind: str, count: int) -> None:
        """See ``WatchReport``."""
        # A kind that was missing may be installed later.
        self.missing.labels(kind).set(0)
        self._log.info("listed", extra={"kind": kind, "count": count})

    def watch_failed(self, kind: str, error: Exception) -> None:
        """See ``WatchReport``."""
        self.watch_errors.labels(kind).inc()
        self._log.warning("watch failed; retrying", extra={"kind": kind, "reason": str(error)})

    def watch_restored(self, kind: str) -> None:
        """See ``WatchReport``."""
        self._log.warning(
            "the cluster's store was restored from a backup; accepting what it lists now", extra={"kind": kind}
        )

    def unreadable_objects(self, kind: str, count: int) -> None:
        """See ``WatchReport``."""
        self.unreadable.labels(kind).set(count)


class ProgramTelemetry(WatchTelemetry, SettingsTelemetry):
    """Metrics and log lines of a program that has watches, settings and a Lease; ``leading`` is a help text too."""

    def __init__(self, prefix: str, log: Logger, unreadable: str, leading: str, ready: str = LISTED) -> None:
        super().__init__(prefix, log, unreadable, ready)
        self.leading = self.gauge("leading", leading)

    def leads(self, leads: bool) -> None:
        """Record that the Lease was acquired or lost."""
        self.leading.set(leads)
        self._log.info("holds the Lease" if leads else "does not hold the Lease")
