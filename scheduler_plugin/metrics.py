"""The scheduler's metrics by job: the leader's gauges (B.3), migrations (S4.8, S4.12), requests of pods (B.10).

Labels are small fixed sets of words.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

TOTAL: Final = (0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0)
DOWNTIME: Final = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 1.0, 2.0, 5.0)

_PREFIX: Final = "autoscale_scheduler_pod_requests"
_SECONDS: Final = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)


class LeaderGauges:
    """Gauges that only the leader sets; a standby replica shows none of them."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry
        self._gauges: list[Gauge] = []
        self._resets: list[Callable[[], object]] = []
        self._leads = False

    def gauge(self, name: str, text: str, *labels: str) -> Gauge:
        """Creates a gauge; call it before the first term. Children with ``labels`` last for one term: look them up in
        each.
        """
        # Registered only while this process leads: a deposed leader's numbers are stale.
        gauge = Gauge(name, text, labels, registry=None)
        self._gauges.append(gauge)
        # A gauge with labels loses its children; one without can only be set back.
        self._resets.append(gauge.clear if labels else partial(gauge.set, 0.0))
        return gauge

    def leads(self, leads: bool) -> None:
        """This process begins to lead, or leads no more."""
        # Registering a gauge twice raises.
        if leads is self._leads:
            return
        self._leads = leads
        for gauge, reset in zip(self._gauges, self._resets, strict=True):
            if leads:
                self._registry.register(gauge)
            else:
                self._registry.unregister(gauge)
                # A term must not begin with the numbers of an earlier one.
                reset()


class MigrationMetrics:
    """Migrations that were ordered, that are under way, and that have ended."""

    def __init__(self, registry: CollectorRegistry, of_leader: LeaderGauges) -> None:
        counter, histogram = partial(Counter, registry=registry), partial(Histogram, registry=registry)
        # Only the leader knows these. Counters and histograms count what this process did, leading or not.
        gauge = of_leader.gauge
        orders = "Migrations ordered, by outcome of their creation"
        self.orders = counter("autoscale_scheduler_migration_orders", orders, ("outcome",))
        causes = "Moves for which room was reserved, by cause"
        self.causes = counter("autoscale_scheduler_migration_causes", causes, ("cause",))
        refusing = "Longest time that a node has denied room to a VM or pod while too little leaves it"
        self.unrelieved = gauge("autoscale_scheduler_unrelieved_denial_seconds", refusing)
        self.ended = counter("autoscale_scheduler_migrations", "Migrations that have ended, by outcome", ("outcome",))
        active = "Migrations that have not ended, by phase"
        self.active = gauge("autoscale_scheduler_migrations_active", active, "phase")
        stalled = "Migrations that do not count because their target pods have had no node for a minute"
        self.stalled = gauge("autoscale_scheduler_migrations_stalled", stalled)
        self.enabled = gauge("autoscale_scheduler_migrations_enabled", "1 while VMs may be moved")
        stuck = "Nodes that VMs should leave while none can"
        self.stuck = gauge("autoscale_scheduler_migration_stuck_nodes", stuck)
        refused = "Pairs of a VM and a node that are left alone because kube-scheduler did not place the VM there"
        self.refused = gauge("autoscale_scheduler_migration_refused_targets", refused)
        failing = "Planning rounds that failed with an internal error"
        self.failed_looks = counter("autoscale_scheduler_migration_looks_failed", failing)
        took = "How long successful migrations took"
        self.total = histogram("autoscale_scheduler_migration_seconds", took, buckets=TOTAL)
        still = "Downtime of VMs in successful migrations"
        self.downtime = histogram("autoscale_scheduler_migration_downtime_seconds", still, buckets=DOWNTIME)


class RequestMetrics:
    """The metrics of one process: how writes end, how long agents wait for them, and how many pods are behind."""

    def __init__(self, registry: CollectorRegistry, of_leader: LeaderGauges) -> None:
        self.writes = Counter(f"{_PREFIX}_writes", "Requests of VMs' pods written", ["outcome"], registry=registry)
        self.waited = Histogram(
            f"{_PREFIX}_wait_seconds",
            "Time until a pod's requests held what its agent asked for: API server and kubelet together",
            registry=registry,
            buckets=_SECONDS,
        )
        self.withdrawn = Counter(
            f"{_PREFIX}_withdrawn",
            "Pod resizes reverted that a kubelet had put off (Deferred) or called impossible (Infeasible)",
            ["verdict"],
            registry=registry,
        )
        self.followed = of_leader.gauge(f"{_PREFIX}_followed", "1 while requests of pods follow their VMs")
        self.short = of_leader.gauge(f"{_PREFIX}_short", "Pods that request less than is reserved for their VMs")
