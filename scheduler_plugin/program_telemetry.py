"""Common metrics and log lines of this package's programs: its watches, objects that cannot be read, and its settings.

Labels are kinds and small fixed sets of words.
"""

from __future__ import annotations

from logging import Logger
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest

from protocol.kubernetes.pages import Unreadable
from protocol.runtime.build_info import describe_process

KIND_MISSING: Final = "the cluster lacks this kind, continuing without it until it is installed"


class SettingsTelemetry:
    """Metrics with a program's ``prefix``, and lines in its ``log``, about its settings; ``reloads`` is a help text."""

    def __init__(self, prefix: str, log: Logger, reloads: str = "New settings, by outcome") -> None:
        self.registry = CollectorRegistry()
        # Metric names have underscores, the program's own name has hyphens.
        describe_process(self.registry, prefix.replace("_", "-"))
        self._prefix = prefix
        self._log = log
        self.reloads = self._counter("settings_reloads", reloads, "outcome")
        self.refused = self._gauge("settings_refused", "1 while the settings' file holds something that was refused")

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"{self._prefix}_{name}", text, labels, registry=self.registry)

    def _gauge(self, name: str, text: str, *labels: str) -> Gauge:
        return Gauge(f"{self._prefix}_{name}", text, labels, registry=self.registry)

    def page(self) -> bytes:
        """The metrics in Prometheus's text format."""
        return generate_latest(self.registry)

    def settings_accepted(self, generation: int) -> None:
        """New settings are in force; see ``SettingsReport``."""
        self.reloads.labels("accepted").inc()
        self.refused.set(0)
        self._log.info("settings accepted", extra={"generation": generation})

    def settings_refused(self, reason: str) -> None:
        """A new content was refused, the old settings stay; see ``SettingsReport``."""
        self.reloads.labels("refused").inc()
        self.refused.set(1)
        self._log.error("settings refused, the old ones stay", extra={"reason": reason})


class ProgramTelemetry(SettingsTelemetry):
    """The same of a program that watches the cluster. ``unreadable`` and ``ready`` are help texts of those gauges."""

    def __init__(
        self, prefix: str, log: Logger, unreadable: str, ready: str = "1 once the cluster has been read"
    ) -> None:
        super().__init__(prefix, log, "Settings reloads, by outcome")
        self.ready = self._gauge("ready", ready)
        self.watch_errors = self._counter("watch_failures", "Lists and watches that broke off", "kind")
        self.unreadable = self._gauge("unreadable_objects", unreadable, "kind")
        self.missing = self._gauge("watch_missing", "1 for a kind that the cluster lacks and may lack", "kind")

    def watch_heard(self, kind: str) -> None:
        """See ``WatchReport``."""

    def watch_missing(self, kind: str) -> None:
        """See ``WatchReport``."""
        self.missing.labels(kind).set(1)
        self._log.info(KIND_MISSING, extra={"kind": kind})

    def object_unreadable(self, kind: str, found: Unreadable) -> None:
        """See ``WatchReport``."""
        details = {"kind": kind, "object": str(found.name), "reason": found.reason}
        self._log.error("object cannot be decoded, it stays as it was", extra=details)

    def watch_listed(self, kind: str, count: int) -> None:
        """See ``WatchReport``."""
        # A kind that was missing may be installed later.
        self.missing.labels(kind).set(0)
        self._log.info("listed", extra={"kind": kind, "count": count})

    def watch_failed(self, kind: str, error: Exception) -> None:
        """See ``WatchReport``."""
        self.watch_errors.labels(kind).inc()
        self._log.warning("watch broke off, trying again", extra={"kind": kind, "reason": str(error)})

    def watch_restored(self, kind: str) -> None:
        """See ``WatchReport``."""
        self._log.warning("the cluster's store was restored: what it lists now is taken as it is", extra={"kind": kind})

    def unreadable_objects(self, kind: str, count: int) -> None:
        """See ``WatchReport``."""
        self.unreadable.labels(kind).set(count)
