"""Objects that a scheduler's workers share: the ledger, the feed, order queues, and ports."""

from __future__ import annotations

from dataclasses import dataclass

from protocol.runtime.clock import Clock
from scheduler_plugin.cluster.feed import Feed
from scheduler_plugin.cluster.write import ClusterWriter
from scheduler_plugin.ledger.events import Fact, PermitWritten, Report
from scheduler_plugin.ledger.ledger import Ledger
from scheduler_plugin.order_queues import OrderQueues
from scheduler_plugin.planner.plan import MigrationStatus
from scheduler_plugin.telemetry import Telemetry
from scheduler_plugin.term import Term


@dataclass(frozen=True, slots=True)
class SchedulerContext:
    """Objects that a scheduler's parts share in one term.

    Do not await between two uses of ``ledger`` for one decision.
    """

    ledger: Ledger
    feed: Feed
    queues: OrderQueues
    writer: ClusterWriter
    clock: Clock
    telemetry: Telemetry
    migration_status: MigrationStatus
    term: Term

    def report(self, event: PermitWritten | Fact | Report) -> None:
        """Apply an event without a decision, and queue the resulting orders."""
        self.queues.add(self.ledger.apply(event, self.clock.now()))
