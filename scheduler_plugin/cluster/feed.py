"""Feeds the ledger from four informers: complete lists first, then facts.

The ledger gets all lists at once, as soon as all four kinds are listed, and again whenever one has been relisted.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

from protocol.kubernetes.api import KubernetesApi
from protocol.messages import ObjectName
from protocol.names import ANNOTATION_PERMIT_WRITER
from protocol.permits import decode_writer
from protocol.pod_database import PodDatabase
from protocol.ranking.config import MAX_PRICE
from protocol.ranking.prices import Needs, is_estimated, node_price
from protocol.runtime.clock import Clock
from protocol.runtime.kubernetes.watches.informer import FactInformer
from protocol.runtime.kubernetes.watches.kinds import FactChange
from protocol.units import Seconds
from protocol.virtual_machine import VirtualMachine
from scheduler_plugin.cluster.migrations import MIGRATIONS, ClusterMigration
from scheduler_plugin.cluster.pods.databases import PodDatabases
from scheduler_plugin.cluster.translate import CLAIMS, NAMESPACES, NODES, PODS, VMS, VOLUMES, ClusterNode
from scheduler_plugin.cluster.virtual_machines import ClusterVm, vm_facts
from scheduler_plugin.constraints.checker import ConstraintContext
from scheduler_plugin.constraints.model import Labels, NodeTerm
from scheduler_plugin.ledger import events
from scheduler_plugin.ledger.facts import NodeFacts, PodFacts
from scheduler_plugin.ledger.ledger import Ledger
from scheduler_plugin.order_queues import OrderQueues
from scheduler_plugin.settings.document import SchedulerSettings
from scheduler_plugin.telemetry import Telemetry


class PodAddresses:
    """Index of pods by IP address."""

    def __init__(self) -> None:
        self._at: dict[str, dict[ObjectName, PodFacts]] = {}

    def change(self, before: PodFacts | None, after: PodFacts | None) -> None:
        """Apply a change of one pod; ``before`` is None for a new pod, ``after`` for a deleted one."""
        if before is not None:
            for address in before.addresses:
                self._at[address].pop(before.name, None)
                # Remove empty entries: addresses come and go forever.
                if not self._at[address]:
                    del self._at[address]
        if after is not None:
            for address in after.addresses:
                self._at.setdefault(address, {})[after.name] = after

    def only_pod_at(self, address: str) -> PodFacts | None:
        """The pod with that address; None if there is none, or more than one."""
        pods = self._at.get(address, {})
        # While an address is reused, two pods may show it, and neither certainly owns it.
        return next(iter(pods.values())) if len(pods) == 1 else None


def node_facts(node: ClusterNode, settings: SchedulerSettings) -> NodeFacts:
    """A node with its policy and price (S2.1). Nodes missing in the price table rank last (S2.5)."""
    keys = (node.name, *node.price_keys)
    price = node_price(keys, Needs(node.allocatable, node.gpus), settings.ranking)
    if is_estimated(keys, settings.ranking):
        # An estimate must not undercut a known price (S2.5).
        price += MAX_PRICE
    return node.facts(settings.policy_of(node.name), price)


class Feed:
    """Sends the ledger events from the informers of nodes, pods, VMs and migrations, joined with the settings.

    ``ready`` is set once everything has been read.
    """

    def __init__(  # noqa: PLR0913 - what it joins is what it is
        self,
        ledger: Ledger,
        queues: OrderQueues,
        report: Telemetry,
        *,
        clock: Clock,
        settings: SchedulerSettings,
        identity: str | None,
    ) -> None:
        self.settings = settings
        self.nodes: FactInformer[ClusterNode] = FactInformer(NODES, self._node_changed, report)
        self.pods: FactInformer[PodFacts] = FactInformer(PODS, self._pod_changed, report)
        self.vms: FactInformer[ClusterVm] = FactInformer(VMS, self._vm_changed, report)
        self.migrations: FactInformer[ClusterMigration] = FactInformer(MIGRATIONS, self._migration_changed, report)
        self.namespaces: FactInformer[Labels] = FactInformer(NAMESPACES, lambda _: None, report)
        self.claims: FactInformer[str] = FactInformer(CLAIMS, lambda _: None, report)
        self.volumes: FactInformer[tuple[NodeTerm, ...]] = FactInformer(VOLUMES, lambda _: None, report)
        # Kinds that the ledger needs, and kinds that only restrict targets of migrations.
        self.informers: tuple[FactInformer[Any], ...] = (self.nodes, self.pods, self.vms, self.migrations)
        self.databases = PodDatabases(report, self._database_changed)
        self._extras: tuple[FactInformer[Any], ...] = (self.namespaces, self.claims, self.volumes)
        for informer in self._all():
            # A restored etcd shows in one kind first; the other caches may still have the lost history.
            informer.on_restored = partial(self.restored, informer)
        self.addresses = PodAddresses()
        self._clock = clock
        self._report = report
        self._listed: set[str] = set()
        self.ready = asyncio.Event()
        self._is_refreshing = False
        # Last: it uses everything above.
        self.attach(ledger, queues, identity)

    def attach(self, ledger: Ledger, queues: OrderQueues, writer: str | None) -> None:
        """Send changes to this ledger from now on, starting with everything read so far.

        ``writer`` is the only writer of permits; None: another process decides.
        """
        self._ledger, self._queues, self._writer = ledger, queues, writer
        self._apply(_settings_read(self.settings))
        self._apply(events.RequestsFollow(self.settings.pod_requests, limits_cpu=self.settings.limits_cpu))
        # With warm caches a new term need not wait.
        if not self.missing:
            self._resync()

    async def refresh(self) -> None:
        """Relist, so that the caches contain everything written before this call. Then ``attach`` a ledger."""
        self._is_refreshing = True
        try:
            async with asyncio.TaskGroup() as tasks:
                for informer in self.informers:
                    tasks.create_task(informer.refresh())
        finally:
            # Also after a failure, or the ledger would never get events again.
            self._is_refreshing = False

    async def hold_back(self, span: Seconds) -> None:
        """List all kinds, wait for ``span``, and list them again before the ledger gets anything.

        The second lists contain all writes of a predecessor. Call it while ``run`` is running and nothing is listed
        yet.
        """
        await self.refresh()
        self._is_refreshing = True
        await self._clock.sleep(span)
        # A predecessor's write in flight may land during the sleep; the second list shows it.
        await self.refresh()
        self._hand_over()

    async def run(self, api: KubernetesApi) -> None:
        """Run all informers until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for informer in self.informers:
                tasks.create_task(informer.run(api, self._clock, partial(self.listed, informer.kind.name)))
            for extra in self._extras:
                # Neither readiness nor the ledger waits for these.
                tasks.create_task(extra.run(api, self._clock, lambda: None))
            # Most clusters have no postgres in pods, and many lack these kinds.
            await self.databases.appeared.wait()
            for informer in self.databases.informers:
                tasks.create_task(informer.run(api, self._clock, partial(self.databases.listed, informer.kind.name)))

    def apply_settings(self, settings: SchedulerSettings) -> None:
        """Apply new settings to all nodes: compute unit, watermark, reserve and price (S4.6, S4.8, S2.8b)."""
        self.settings = settings
        self._apply(_settings_read(settings))
        if not settings.pod_requests:  # off immediately; on only after a check of the API server
            self._apply(events.RequestsFollow(False))
        if self._ledger.is_ready:
            # They are part of a node's facts, so compute every node again.
            for node in self.nodes.facts.values():
                self._apply(events.NodeSeen(node_facts(node, settings)))

    def is_attached_to(self, ledger: Ledger) -> bool:
        """Return True if this ledger receives the changes; each term has its own ledger."""
        return self._ledger is ledger

    def listed(self, kind: str) -> None:
        """Record that an informer has listed its kind; once all have, send the lists to the ledger."""
        # Also after a relist, which has changes that no event reported.
        self._listed.add(kind)
        self._hand_over()

    def _all(self) -> tuple[FactInformer[Any], ...]:
        return self.informers + self._extras + self.databases.informers

    def _hand_over(self) -> None:
        # All four kinds at once: a pod without its VM or node would be wrong. During a refresh some lists are older.
        if self.missing or self._is_refreshing:
            return
        self._resync()
        if not self.ready.is_set():
            self.ready.set()
            self._report.became_ready(len(self.nodes.facts), len(self._ledger.claims))

    def _resync(self) -> None:
        nodes = [node_facts(node, self.settings) for node in self.nodes.facts.values()]
        vms = [*(vm_facts(vm) for vm in self.vms.facts.values()), *self.databases.facts()]
        moves = [migration.facts for migration in self.migrations.facts.values()]
        self._apply(events.Listed(nodes, self.pods.facts.values(), vms, moves))

    def _apply(self, event: events.Fact | events.Report) -> None:
        self._queues.add(self._ledger.apply(event, self._clock.now()))

    def restored(self, noticed_by: FactInformer[Any] | None = None) -> None:
        """Relist everything after etcd was restored, except ``noticed_by``: an informer that notices it relists."""
        # Feed nothing until every kind was relisted.
        self._listed.clear()
        # A restored etcd continues from an older resourceVersion, so newer facts would look stale.
        self._apply(events.StoreRestored())
        for informer in self._all():
            if informer is not noticed_by:
                informer.read_again()

    @property
    def missing(self) -> list[str]:
        """Kinds not listed yet, or not since a restore; until they are, the ledger gets nothing."""
        # Without the migration CRD they count as listed.
        return sorted({informer.kind.name for informer in self.informers} - self._listed)

    @property
    def constraint_context(self) -> ConstraintContext:
        """Facts that restrict the targets of VMs and are not in the ledger."""
        # Every cluster has namespaces, so an empty table means that they could not be listed.
        namespaces = self.namespaces.facts or None
        is_current = self.pods.is_current and self.migrations.is_current
        return ConstraintContext(namespaces, self.claims.facts, self.volumes.facts, is_current)

    def vm_of(self, pod: PodFacts) -> VirtualMachine | None:
        """The VM, or database, that the pod runs, if known."""
        if pod.database is not None:
            return pod.database
        vm = None if pod.vm is None else self.vms.facts.get(pod.vm)
        # A migration's target names its VM by a label only, without a UID.
        return vm if vm is not None and pod.vm_uid in ("", vm.uid) else None

    def pod(self, name: ObjectName, uid: str) -> PodFacts | None:
        """The pod with this name and UID, if known."""
        pod = self.pods.facts.get(name)
        return pod if pod is not None and pod.uid == uid else None

    def pod_at(self, name: ObjectName, uid: str, version: str) -> PodFacts | None:
        """The pod with this name and UID, if it is known in this version."""
        pod = self.pods.at_version(name, version)
        return pod if pod is not None and pod.uid == uid else None

    def _node_changed(self, change: FactChange[ClusterNode]) -> None:
        if not self._ledger.is_ready:
            return
        if change.after is None:
            self._apply(events.NodeGone(change.name.name))
        else:
            self._apply(events.NodeSeen(node_facts(change.after, self.settings)))

    def _pod_changed(self, change: FactChange[PodFacts]) -> None:
        self.addresses.change(change.before, change.after)
        self.databases.change(change.before, change.after)
        if not self._ledger.is_ready:
            return
        # Another UID under the same name is another pod, as in a StatefulSet: the old one is gone.
        if change.before is not None and (change.after is None or change.after.uid != change.before.uid):
            self._apply(events.PodGone(change.before.uid))
        if change.after is not None:
            # First its database, which determines the pod's size.
            if change.after.database is not None:
                self._database_changed(change.after.database)
            self._apply(events.PodSeen(change.after))
        was = None if change.before is None else change.before.database
        if was is not None and (change.after is None or change.after.database is None):
            self._apply(events.VmGone(was.name))

    def _database_changed(self, database: PodDatabase) -> None:
        if self._ledger.is_ready:
            self._apply(events.VmSeen(self.databases.facts_of(database)))

    def _vm_changed(self, change: FactChange[ClusterVm]) -> None:
        if not self._ledger.is_ready:
            return
        self._watch_for_rivals(change)
        if change.before is not None and (change.after is None or change.after.uid != change.before.uid):
            # Queued permits were for the deleted VM.
            self._queues.permits.drop(change.name.namespace, change.name)
        if change.after is None:
            self._apply(events.VmGone(change.name))
        else:
            self._apply(events.VmSeen(vm_facts(change.after)))

    def _migration_changed(self, change: FactChange[ClusterMigration]) -> None:
        if not self._ledger.is_ready:
            return
        if change.after is None:
            self._apply(events.MigrationGone(change.name))
        else:
            self._apply(events.MigrationSeen(change.after.facts))

    def _watch_for_rivals(self, change: FactChange[ClusterVm]) -> None:
        """Report permits written by another process: only one may write."""
        before, after = change.before, change.after
        if self._writer is None or before is None or after is None or before.permit == after.permit:
            return
        writer = after.annotations.get(ANNOTATION_PERMIT_WRITER)
        if writer is None or decode_writer(writer) != self._writer:
            self._report.rival_write(change.name, writer)


def _settings_read(settings: SchedulerSettings) -> events.SettingsRead:
    return events.SettingsRead(settings.ranking, settings.scheduler_name, settings.percent_of_nodes)
