"""The scheduler's metrics and log.

Label values are nodes, resources and small fixed sets: never pods, VMs or peers. The ledger reports nothing here; it
returns explanations.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from functools import cache, partial
from typing import Final

from prometheus_client import CollectorRegistry, Gauge, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from protocol.kubernetes.pages import Unreadable
from protocol.messages import ObjectName
from protocol.units import Instant, Resources, Seconds
from scheduler_plugin.ledger.accounts.node_account import NodeAccount
from scheduler_plugin.ledger.accounts.sharing import promised_to
from scheduler_plugin.ledger.ledger import Ledger
from scheduler_plugin.program_telemetry import KIND_MISSING, ProcessTelemetry, ProgramTelemetry
from scheduler_plugin.texts import logs

TOTAL: Final = (0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0)
DOWNTIME: Final = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 1.0, 2.0, 5.0)

_PREFIX: Final = "autoscale_scheduler"
_SECONDS: Final = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)


class LeaderGauges:
    """Gauges of the leader only; a standby does not export them."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry
        self._gauges: list[Gauge] = []
        self._resets: list[Callable[[], object]] = []
        self._leads = False

    def gauge(self, name: str, text: str, *labels: str) -> Gauge:
        """Create a gauge; call it before the first term. Children with ``labels`` last for one term: look them up in
        each.
        """
        # Registered only while leading: a former leader's values are stale.
        gauge = Gauge(f"{_PREFIX}_{name}", text, labels, registry=None)
        self._gauges.append(gauge)
        # Labelled gauges lose their children; others are reset to 0.
        self._resets.append(gauge.clear if labels else partial(gauge.set, 0.0))
        return gauge

    def leads(self, leads: bool) -> None:
        """Leadership was gained or lost."""
        # Registering a gauge twice raises.
        if leads is self._leads:
            return
        self._leads = leads
        for gauge, reset in zip(self._gauges, self._resets, strict=True):
            if leads:
                self._registry.register(gauge)
            else:
                self._registry.unregister(gauge)
                # Reset the values of an earlier term.
                reset()


class MigrationMetrics:
    """Ordered, running and ended migrations."""

    def __init__(self, process: ProcessTelemetry, of_leader: LeaderGauges) -> None:
        # Gauges are known to the leader only. Counters and histograms count what this process did, leading or not.
        counter, histogram, gauge = process.counter, process.histogram, of_leader.gauge
        self.orders = counter("migration_orders", "Attempts to create a migration, by outcome", "outcome")
        causes = "Migrations planned with room reserved on the target, by cause"
        self.causes = counter("migration_causes", causes, "cause")
        refusing = "Longest time that a node has denied a VM or pod room while too little moved away"
        self.unrelieved = gauge("unrelieved_denial_seconds", refusing)
        self.ended = counter("migrations", "Finished migrations, by outcome", "outcome")
        self.active = gauge("migrations_active", "Unfinished migrations, by phase", "phase")
        stalled = "Migrations ignored because their target pod has had no node for a minute"
        self.stalled = gauge("migrations_stalled", stalled)
        self.enabled = gauge("migrations_enabled", "1 while the scheduler may migrate VMs")
        self.stuck = gauge("migration_stuck_nodes", "Nodes that VMs should leave but none can")
        refused = "VM-node pairs excluded for now because kube-scheduler did not place the VM there"
        self.refused = gauge("migration_refused_targets", refused)
        failing = "Planning rounds that failed with an internal error"
        self.failed_rounds = counter("migration_looks_failed", failing)
        self.total = histogram("migration_seconds", "Duration of successful migrations", TOTAL)
        still = "Downtime of VMs in successful migrations"
        self.downtime = histogram("migration_downtime_seconds", still, DOWNTIME)


class RequestMetrics:
    """Pod resizes: outcomes, how long agents wait, and the number of pods with wrong requests."""

    def __init__(self, process: ProcessTelemetry, of_leader: LeaderGauges) -> None:
        writes = "Updates of VM pods' resource requests, by outcome"
        self.writes = process.counter("pod_requests_writes", writes, "outcome")
        waited = "Time until a pod's requests covered what its agent asked for, including API server and kubelet"
        self.waited = process.histogram("pod_requests_wait_seconds", waited, _SECONDS)
        withdrawn = "Pod resizes reverted because the kubelet deferred (Deferred) or rejected (Infeasible) them"
        self.withdrawn = process.counter("pod_requests_withdrawn", withdrawn, "verdict")
        self.followed = of_leader.gauge("pod_requests_followed", "1 while pod requests follow their VMs")
        short = "Pods that request less than is reserved for their VMs"
        self.short = of_leader.gauge("pod_requests_short", short)


LOG: Final = logging.getLogger("autoscale.scheduler")

# Buckets up to 5 s: agents give up then.
SECONDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)

WAKES: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 30.0, 120.0, 600.0)
"""Up to minutes: on a full node a VM waits until others have shrunk or moved."""

REQUESTS: Final = (1, 2, 5, 10, 20, 50, 100)


class Telemetry(ProgramTelemetry):
    """Metrics and log of one scheduler process."""

    def __init__(self, now: Callable[[], Instant]) -> None:
        unreadable = "Objects accounted at their maximum because they cannot be decoded"
        super().__init__(_PREFIX, LOG, unreadable, "1 while this process serves agents and kube-scheduler")
        self._now = now
        self._heard: dict[str, Instant] = {}
        self.permits = self.counter("permits", "Agent requests, by outcome", "outcome")
        self.verbs = self.counter(
            "extender_calls", "Extender calls from kube-scheduler, by verb and outcome", "verb", "outcome"
        )
        self.permit, self.verb = cache(self.permits.labels), cache(self.verbs.labels)  # ``labels`` is slow
        self.shrinks = self.counter("shrinks_asked", "Responses that ask a VM to give back unused room")
        self.refusals = self.counter("agent_refusals", "Agent requests answered with an error, by status", "status")
        self.writes = self.counter("permit_writes", "Permit writes to the API, by outcome", "outcome")
        self.write = cache(self.writes.labels)
        self.wakes = self.counter("node_wakes", "Node updates that requeue pending pods, by outcome", "outcome")
        self.rivals = self.counter("rival_permit_writes", "Permits written by another scheduler process; must be 0")
        self.persist_seconds = self.histogram(
            "permit_persist_seconds", "Time to persist a permit before responding", SECONDS
        )
        self.wake_seconds = self.histogram(
            "wake_permit_seconds",
            "Time from the first request of a waking VM's agent until its permit was stored",
            WAKES,
        )
        self.batches = self.histogram("batch_requests", "Requests per message from a node's agent", REQUESTS)
        self.takeover = self.gauge("takeover_seconds", "Time from acquiring the Lease to serving, at the last takeover")
        self.terms = self.counter("terms", "Times this process became the leader")
        # Exported by the leader only.
        self._of_leader = LeaderGauges(self.registry)
        self.migrations = MigrationMetrics(self, self._of_leader)
        self.requests = RequestMetrics(self, self._of_leader)
        scaled = "Autoscaled VMs, by whether their agent sent a request within the last minute"
        self._scaled = self._of_leader.gauge("scaled_vms", scaled, "agent")
        unattended = "Waking VMs whose agent has sent no request for a minute"
        self._unattended = self._of_leader.gauge("unattended_wakes", unattended)
        for counter, values in (
            (self.permits, ("whole", "partly", "migrate")),
            (self.refusals, ("400", "401", "403", "404", "409", "413", "503")),
            (self.writes, ("stored", "altered", "lost", "refused", "unknown")),
            (self.wakes, ("done", "refused", "unknown")),
            (self.migrations.orders, ("created", "refused", "unknown")),
            (self.migrations.ended, ("succeeded", "failed", "cancelled")),
        ):
            for word in values:  # start at 0, so that the first event counts as an increase
                counter.labels(word)
        self.lease_held = self.gauge("lease_held", "1 while this process holds the Lease")
        # Read at each scrape, so that a deleted node leaves no series.
        self._sums = _Sums()
        self.registry.register(self._sums)
        self.generation = self.gauge("settings_generation", "Number of settings versions accepted")

    async def page_of(self, ledger: Ledger) -> bytes:
        """Metrics in Prometheus's text format, rendered in a thread because thousands of nodes take long."""
        # Copied on the event loop: the thread must not read a changing ledger.
        self._sums.take(ledger, self._watch_ages(), self._now())
        for agent, count in zip(("heard", "silent"), ledger.scaled_vms(self._now()), strict=True):
            self._scaled.labels(agent).set(count)
        self._unattended.set(ledger.unattended_wakes(self._now()))
        return await asyncio.to_thread(generate_latest, self.registry)

    def _watch_ages(self) -> dict[str, float]:
        return {kind: self._now() - heard_at for kind, heard_at in self._heard.items()}

    def watch_delivered(self, kind: str) -> None:
        """See ``WatchReport``."""
        self._heard[kind] = self._now()

    def watch_listed(self, kind: str, count: int) -> None:
        """See ``WatchReport``."""
        self.watch_delivered(kind)
        super().watch_listed(kind, count)

    def watch_missing(self, kind: str) -> None:
        """See ``WatchReport``."""
        # No age without a watch: an alert would fire for a kind that the cluster lacks.
        self._heard.pop(kind, None)
        self.missing.labels(kind).set(1)
        LOG.warning(KIND_MISSING, extra={"kind": kind})

    def object_unreadable(self, kind: str, unreadable: Unreadable) -> None:
        """See ``WatchReport``."""
        details = {"kind": kind, "object": str(unreadable.name), "reason": unreadable.reason}
        LOG.error(logs.UNREADABLE, extra=details)

    def settings_accepted(self, generation: int) -> None:
        """See ``SettingsReport``."""
        self.generation.set(generation)
        super().settings_accepted(generation)

    def became_ready(self, nodes: int, claims: int) -> None:
        """The cluster was read for the first time."""
        self.ready.set(1)
        LOG.info(logs.READY, extra={"nodes": nodes, "claims": claims})

    def leads(self, leads: bool, duration: Seconds = Seconds(0.0)) -> None:
        """This process became active, ``duration`` after it acquired the Lease, or inactive."""
        self._of_leader.leads(leads)
        self.leading.set(leads)
        if leads:
            self.takeover.set(duration)
            self.terms.inc()

    def rival_write(self, vm: ObjectName, writer: str | None) -> None:
        """Another process wrote a permit: a second scheduler, or a user."""
        self.rivals.inc()
        LOG.error(logs.RIVAL, extra={"vm": str(vm), "writer": writer})

    def permit_written(self, outcome: str, duration: Seconds | None = None) -> None:
        """A permit's write has ended; ``duration`` if an agent waited for it."""
        self.write(outcome).inc()
        if duration is not None:
            self.persist_seconds.observe(duration)


class _Sums(Collector):
    """Sums of every node at the start of the scrape."""

    def __init__(self) -> None:
        self._nodes: list[tuple[str, int, tuple[Resources, ...]]] = []
        self._waiting = 0
        self._sleeping: tuple[int, int] = (0, 0)
        self._watch_ages: dict[str, float] = {}

    def take(self, ledger: Ledger, watch_ages: dict[str, float], now: Instant) -> None:
        """Copy the ledger's present sums."""
        self._nodes = [(name, len(account.claims), _amounts(account, now)) for name, account in ledger.nodes.items()]
        self._waiting = ledger.waiting
        self._sleeping = ledger.sleeping_vms
        self._watch_ages = watch_ages

    def collect(self) -> Iterable[GaugeMetricFamily]:
        """One family per amount, with labels node and resource (``cpu`` in vCPUs, ``memory`` in bytes)."""
        nodes = self._nodes
        families = [
            GaugeMetricFamily(f"autoscale_scheduler_node_{name}", text, labels=("node", "resource"))
            for name, text in _AMOUNTS.items()
        ]
        claims = GaugeMetricFamily("autoscale_scheduler_node_claims", "Pods with a claim", labels=("node",))
        for node, count, amounts in nodes:
            claims.add_metric((node,), count)
            for family, amount in zip(families, amounts, strict=True):
                family.add_metric((node, "cpu"), amount.cpu.as_cores)
                family.add_metric((node, "memory"), amount.mem.value)
        ages = GaugeMetricFamily(
            "autoscale_scheduler_watch_age_seconds", "Time since a watch last delivered anything", labels=("kind",)
        )
        for kind, age in self._watch_ages.items():
            ages.add_metric((kind,), age)
        waiting = GaugeMetricFamily("autoscale_scheduler_waiting_pods", "Pods that fit no node", self._waiting)
        asleep, waking = self._sleeping
        sleepers = (
            GaugeMetricFamily("autoscale_scheduler_sleeping_vms", "Sleeping VMs; nothing is reserved for them", asleep),
            GaugeMetricFamily(
                "autoscale_scheduler_waking_vms", "Waking VMs: waiting for a permit, or starting", waking
            ),
        )
        return (*families, claims, waiting, *sleepers, ages)


def _amounts(account: NodeAccount, now: Instant) -> tuple[Resources, ...]:
    room, pressure = account.room, account.pressure
    levels = (room.total, account.reserved, room.watermark)
    offered = Resources.sum(claim.offered for claim in account.claims.values() if claim.offered.any)
    promised = promised_to(account.unmet, account, now)
    pressures = (pressure.logical, pressure.capacity, pressure.excess)
    return (*levels, *pressures, account.forced, offered, account.unmet, promised, room.for_waking)


_AMOUNTS: Final = {
    "reservable": "Room for reservations: allocatable minus the system reserve",
    "reserved": "Reserved by pods",
    "watermark": "Level above which reservations count as pressure",
    "pressure_logical": "Reserved above the watermark",
    "pressure_capacity": "Requested but not granted",
    "pressure_excess": "Room that VMs still have to leave, beyond migrations under way",
    "forced": "Overcommitment caused by external changes; permits never cause it",
    "offered": "Room that VMs could give back, by their agents' last request",
    "denied": "Room that VMs requested and were denied",
    "promised": "Part of the denied room that other VMs have been asked to give back",
    "for_waking": "Free room that only VMs sleeping on the node may take, to wake",
}
