"""What Prometheus hears of migrations (S4.8, S4.12). Labels are few fixed words."""

from __future__ import annotations

from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

TOTAL: Final = (0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0)
DOWNTIME: Final = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 1.0, 2.0, 5.0)


class MigrationMetrics:
    """Orders, endings and what is on its way."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.orders = Counter(
            "autoscale_scheduler_migration_orders",
            "Migrations that were to be created, by what came of it",
            ("outcome",),
            registry=registry,
        )
        self.ended = Counter(
            "autoscale_scheduler_migrations", "Migrations that have ended, by how", ("outcome",), registry=registry
        )
        self.active = Gauge(
            "autoscale_scheduler_migrations_active",
            "Migrations that have not ended, by phase",
            ("phase",),
            registry=registry,
        )
        self.enabled = Gauge("autoscale_scheduler_migrations_enabled", "1 while VMs may be moved", registry=registry)
        self.stuck = Gauge(
            "autoscale_scheduler_migration_stuck_nodes", "Nodes that VMs should leave and none can", registry=registry
        )
        self.refused = Gauge(
            "autoscale_scheduler_migration_refused_targets",
            "Pairs of a VM and a node that are left alone because kube-scheduler did not place the VM there",
            registry=registry,
        )
        self.total = Histogram(
            "autoscale_scheduler_migration_seconds",
            "How long successful migrations took",
            registry=registry,
            buckets=TOTAL,
        )
        self.downtime = Histogram(
            "autoscale_scheduler_migration_downtime_seconds",
            "How long VMs stood still in successful migrations",
            registry=registry,
            buckets=DOWNTIME,
        )
