"""What the workers of one scheduler share: the ledger, what feeds it, queues of work, and ways to the outside."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from scheduler_plugin.clock import Clock
from scheduler_plugin.cluster.feed import Feed
from scheduler_plugin.cluster.write import ClusterWriter
from scheduler_plugin.ledger import Effect, Ledger
from scheduler_plugin.telemetry import Telemetry
from scheduler_plugin.workqueue import WorkQueues


@dataclass(slots=True, eq=False)
class MigrationStatus:
    """What the last planning round found out about moving VMs, for people.

    ``idle`` says why no VM is moved at all (None: VMs may be moved), ``stuck`` why VMs that should leave a node
    cannot, by the node.
    """

    idle: str | None = "no planning round has run yet"
    stuck: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SchedulerContext:
    """What one scheduler's parts share. Only code that awaits nothing in between may touch ``ledger`` twice."""

    ledger: Ledger
    feed: Feed
    queues: WorkQueues
    writer: ClusterWriter
    clock: Clock
    telemetry: Telemetry
    migration_status: MigrationStatus

    def order(self, effects: Iterable[Effect]) -> None:
        """Takes the ledger's orders; nothing is waited for."""
        self.queues.add(effects)
