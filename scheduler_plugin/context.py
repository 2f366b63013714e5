"""Shared objects of one scheduler's workers: the ledger, what feeds it, queues of work, and ways to the outside."""

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

    Code that uses ``ledger`` more than once for a decision must not await anything in between.
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
        """Book an event that asks for no decision, and queue the orders that follow from it."""
        self.queues.add(self.ledger.apply(event, self.clock.now()))
