"""Metrics of migrations (S4.8, S4.12). Labels are small fixed sets of words."""

from __future__ import annotations

from functools import partial
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Histogram

from scheduler_plugin.metrics.leader_gauges import LeaderGauges

TOTAL: Final = (0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0)
DOWNTIME: Final = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 1.0, 2.0, 5.0)


class MigrationMetrics:
    """Migrations that were ordered, that are under way, and that have ended."""

    def __init__(self, registry: CollectorRegistry, of_leader: LeaderGauges) -> None:
        counter, histogram = partial(Counter, registry=registry), partial(Histogram, registry=registry)
        # Only the leader knows these. Counters and histograms count what this process did, leading or not.
        gauge = of_leader.gauge
        orders = "Migrations that were to be created, by what came of it"
        self.orders = counter("autoscale_scheduler_migration_orders", orders, ("outcome",))
        causes = "Moves for which room was reserved, by what they are for"
        self.causes = counter("autoscale_scheduler_migration_causes", causes, ("cause",))
        refusing = "For how long a node has refused room to a VM or pod without enough on its way out, at most"
        self.unrelieved = gauge("autoscale_scheduler_unrelieved_denial_seconds", refusing)
        self.ended = counter("autoscale_scheduler_migrations", "Migrations that have ended, by how", ("outcome",))
        active = "Migrations that have not ended, by phase"
        self.active = gauge("autoscale_scheduler_migrations_active", active, "phase")
        stalled = "Migrations that count no more because their target pods have had no node for a minute"
        self.stalled = gauge("autoscale_scheduler_migrations_stalled", stalled)
        self.enabled = gauge("autoscale_scheduler_migrations_enabled", "1 while VMs may be moved")
        stuck = "Nodes that VMs should leave and none can"
        self.stuck = gauge("autoscale_scheduler_migration_stuck_nodes", stuck)
        refused = "Pairs of a VM and a node that are left alone because kube-scheduler did not place the VM there"
        self.refused = gauge("autoscale_scheduler_migration_refused_targets", refused)
        failing = "Looks at what to move that failed by a mistake of the scheduler's own"
        self.failed_looks = counter("autoscale_scheduler_migration_looks_failed", failing)
        took = "How long successful migrations took"
        self.total = histogram("autoscale_scheduler_migration_seconds", took, buckets=TOTAL)
        still = "How long VMs stood still in successful migrations"
        self.downtime = histogram("autoscale_scheduler_migration_downtime_seconds", still, buckets=DOWNTIME)
