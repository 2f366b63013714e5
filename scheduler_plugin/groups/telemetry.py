"""What the groups' program tells people at 3 a.m.: metrics with few labels, and one line per thing worth reading.

Labels are kinds and small fixed sets of words, never names of groups: those are in status, events and ``/explain``.
"""

from __future__ import annotations

import logging
from collections import Counter as Counts
from collections.abc import Collection
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest

from protocol.kubernetes.objects import JsonObject
from protocol.kubernetes.pages import Unreadable
from scheduler_plugin.groups.policies.notices import stopped_because

LOG: Final = logging.getLogger("autoscale.groups")


class GroupsTelemetry:
    """The metrics of one ``autoscale-groups`` process and its log."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._stopped: set[tuple[str, str]] = set()
        self.leading = self._gauge("leading", "1 while this process holds the Lease and acts")
        self.ready = self._gauge("ready", "1 once the cluster has been read")
        self.judged = self._counter("reconciles", "Groups that were looked at, by outcome", "kind", "outcome")
        self.writes = self._counter("writes", "Writes to the API, by what is written and outcome", "what", "outcome")
        self.scalings = self._counter("scalings", "Scalings that were carried out", "kind", "axis", "direction")
        self.stopped = self._gauge("stopped", "Groups that scale nothing, by reason", "kind", "reason")
        self.count = self._gauge("count", "Groups that there are", "kind")
        self.watch_errors = self._counter("watch_failures", "Lists and watches that broke off", "kind")
        self.unreadable = self._gauge("unreadable_objects", "Objects that cannot be decoded", "kind")
        self.missing = self._gauge("watch_missing", "1 for a kind that the cluster lacks and may lack", "kind")
        self.reloads = self._counter("settings_reloads", "New settings' files, by outcome", "outcome")
        self.refused = self._gauge("settings_refused", "1 while the settings' file holds something that was refused")

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"autoscale_groups_{name}", text, labels, registry=self.registry)

    def _gauge(self, name: str, text: str, *labels: str) -> Gauge:
        return Gauge(f"autoscale_groups_{name}", text, labels, registry=self.registry)

    def page(self) -> bytes:
        """The metrics in Prometheus's text format."""
        return generate_latest(self.registry)

    def take(self, kind: str, groups: Collection[JsonObject]) -> None:
        """Counts the groups of one kind, and those that scale nothing by reason, as they are now."""
        self.count.labels(kind).set(len(groups))
        found = Counts(why for each in groups if (why := stopped_because(each)))
        known = {labels for labels in self._stopped if labels[0] == kind}
        self._stopped |= {(kind, reason) for reason in found}
        for labels in known | {(kind, reason) for reason in found}:
            self.stopped.labels(*labels).set(found[labels[1]])

    def wrote(self, what: str, outcome: str) -> None:
        """A write ended: ``done``, ``refused`` or ``unknown``."""
        self.writes.labels(what, outcome).inc()

    def leads(self, leads: bool) -> None:
        """The Lease was gained or lost."""
        self.leading.set(int(leads))
        LOG.info("holds the Lease" if leads else "does not hold the Lease")

    def became_ready(self) -> None:
        """The cluster has been read for the first time."""
        self.ready.set(1)
        LOG.info("ready")

    def watch_heard(self, kind: str) -> None:
        """See ``WatchReport``."""

    def watch_listed(self, kind: str, count: int) -> None:
        """See ``WatchReport``."""
        self.missing.labels(kind).set(0)
        LOG.info("listed", extra={"kind": kind, "count": count})

    def watch_failed(self, kind: str, error: Exception) -> None:
        """See ``WatchReport``."""
        self.watch_errors.labels(kind).inc()
        LOG.warning("watch broke off, trying again", extra={"kind": kind, "reason": str(error)})

    def watch_missing(self, kind: str) -> None:
        """See ``WatchReport``."""
        self.missing.labels(kind).set(1)
        LOG.info("the cluster lacks this kind, doing without until it is there", extra={"kind": kind})

    def watch_restored(self, kind: str) -> None:
        """See ``WatchReport``."""
        LOG.warning("the cluster's store was restored: what it lists now is taken as it is", extra={"kind": kind})

    def object_unreadable(self, kind: str, found: Unreadable) -> None:
        """See ``WatchReport``."""
        what = {"kind": kind, "object": str(found.name), "reason": found.reason}
        LOG.error("object cannot be decoded, it stays as it was", extra=what)

    def unreadable_objects(self, kind: str, count: int) -> None:
        """See ``WatchReport``."""
        self.unreadable.labels(kind).set(count)

    def settings_accepted(self, generation: int) -> None:
        """New settings are in force."""
        self.reloads.labels("accepted").inc()
        self.refused.set(0)
        LOG.info("settings accepted", extra={"generation": generation})

    def settings_refused(self, reason: str) -> None:
        """A new content was refused; the old settings stay."""
        self.reloads.labels("refused").inc()
        self.refused.set(1)
        LOG.error("settings refused, the old ones stay", extra={"reason": reason})
