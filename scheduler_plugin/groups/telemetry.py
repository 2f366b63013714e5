"""Metrics and log of the groups program.

Label values are kinds or come from small fixed sets. Names of groups are only in their status, events and ``/explain``.
"""

from __future__ import annotations

import logging
from collections import Counter as Counts
from collections.abc import Collection
from typing import Final

from protocol.kubernetes.objects import JsonObject
from scheduler_plugin.groups import texts
from scheduler_plugin.groups.objects.vm_group import stopped_because
from scheduler_plugin.program_telemetry import ProgramTelemetry

LOG: Final = logging.getLogger("autoscale.groups")


class GroupsTelemetry(ProgramTelemetry):
    """Metrics and log of one ``autoscale-groups`` process."""

    def __init__(self) -> None:
        leading = "1 while this process holds the Lease and acts"
        super().__init__("autoscale_groups", LOG, "Objects that cannot be decoded", leading)
        self._stopped: set[tuple[str, str]] = set()
        self.reconciles = self.counter("reconciles", "Reconciles of groups, by outcome", "kind", "outcome")
        self.writes = self.counter("writes", "Writes to the API, by object and outcome", "what", "outcome")
        self.scalings = self.counter("scalings", "Completed scalings", "kind", "axis", "direction")
        self.switchovers = self.counter("switchovers", "Standbys promoted because the primary's node had no room")
        self.stopped = self.gauge("stopped", "Groups that do not scale, by reason", "kind", "reason")
        self.count = self.gauge("count", "Groups", "kind")

    def take(self, kind: str, groups: Collection[JsonObject]) -> None:
        """Set the number of groups of one kind, and of stopped ones by reason."""
        self.count.labels(kind).set(len(groups))
        reasons = Counts(why for group in groups if (why := stopped_because(group)))
        # Set reasons that no group has any more to 0.
        previous = {labels for labels in self._stopped if labels[0] == kind}
        self._stopped |= {(kind, reason) for reason in reasons}
        for labels in previous | {(kind, reason) for reason in reasons}:
            self.stopped.labels(*labels).set(reasons[labels[1]])

    def became_ready(self) -> None:
        """Record that all kinds have been listed for the first time."""
        self.ready.set(1)
        LOG.info(texts.READY)
