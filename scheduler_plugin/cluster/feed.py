"""Feeds the ledger from the API: four informers in, facts and complete lists out.

The ledger gets nothing until all four kinds are listed, then all lists at once; and all of them again whenever a kind
had to be listed again.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any, Protocol, TypeVar

from protocol.kubernetes.api import KubernetesApi
from protocol.messages import ObjectName
from protocol.names import ANNOTATION_PERMIT_WRITER
from protocol.permits import decode_writer
from protocol.pod_database import PodDatabase
from protocol.ranking.config import DEAREST
from protocol.ranking.prices import Needs, is_estimated, node_price
from protocol.runtime.clock import Clock
from protocol.runtime.kubernetes.watches.informer import FactInformer
from protocol.runtime.kubernetes.watches.kinds import FactChange, WatchReport
from protocol.units import Seconds
from protocol.virtual_machine import VirtualMachine
from scheduler_plugin.cluster.migrations import MIGRATIONS, ClusterMigration
from scheduler_plugin.cluster.pods.databases import PodDatabases
from scheduler_plugin.cluster.translate import CLAIMS, NAMESPACES, NODES, PODS, VMS, VOLUMES, ClusterNode
from scheduler_plugin.cluster.virtual_machines import vm_facts
from scheduler_plugin.constraints.judge import ConstraintContext
from scheduler_plugin.constraints.model import Labels, NodeTerm
from scheduler_plugin.ledger import events
from scheduler_plugin.ledger.facts import NodeFacts, PodFacts
from scheduler_plugin.ledger.ledger import Ledger
from scheduler_plugin.order_queues import OrderQueues
from scheduler_plugin.settings.document import SchedulerSettings


class PodAddresses:
    """The pods that have an address of their own, by that address."""

    def __init__(self) -> None:
        self._at: dict[str, dict[ObjectName, PodFacts]] = {}

    def change(self, before: PodFacts | None, after: PodFacts | None) -> None:
        """Takes in a change of one pod; ``before`` is None for a new pod, ``after`` for a deleted one."""
        if before is not None:
            for address in before.addresses:
                self._at[address].pop(before.name, None)
                # Addresses come and go for as long as the process runs; empty tables would pile up.
                if not self._at[address]:
                    del self._at[address]
        if after is not None:
            for address in after.addresses:
                self._at.setdefault(address, {})[after.name] = after

    def only_pod_at(self, address: str) -> PodFacts | None:
        """The pod with that address; None if there is none, or more than one."""
        pods = self._at.get(address, {})
        # When an address is reused, two pods may show it for a moment, and neither is certain to own it.
        return next(iter(pods.values())) if len(pods) == 1 else None


T = TypeVar("T")


def node_facts(node: ClusterNode, settings: SchedulerSettings) -> NodeFacts:
    """A node with the policy and the price of the settings (S2.1). One that the price table lacks comes last (S2.5)."""
    keys = (node.name, *node.price_keys)
    price = node_price(keys, Needs(node.allocatable, node.gpus), settings.ranking)
    if is_estimated(keys, settings.ranking):
        # An estimate must never undercut a node whose price is known (S2.5).
        price += DEAREST
    return node.facts(settings.policy_of(node.name), price)


class FeedReport(WatchReport, Protocol):
    """Receiver of the feed's reports."""

    def became_ready(self, nodes: int, claims: int) -> None:
        """The cluster has been read for the first time."""

    def rival_seen(self, vm: ObjectName, writer: str | None) -> None:
        """Another process wrote a permit while this one was at work."""


class Feed:
    """The informers of nodes, pods, VMs and migrations, joined with the settings and handed to the ledger.

    ``ready`` is set once all has been read.
    """

    def __init__(  # noqa: PLR0913 - what it joins is what it is
        self,
        ledger: Ledger,
        queues: OrderQueues,
        report: FeedReport,
        *,
        clock: Clock,
        settings: SchedulerSettings,
        identity: str | None,
    ) -> None:
        self.settings = settings
        self.nodes: FactInformer[ClusterNode] = FactInformer(NODES, self._node_changed, report)
        self.pods: FactInformer[PodFacts] = FactInformer(PODS, self._pod_changed, report)
        self.vms: FactInformer[VirtualMachine] = FactInformer(VMS, self._vm_changed, report)
        self.migrations: FactInformer[ClusterMigration] = FactInformer(MIGRATIONS, self._migration_changed, report)
        self.namespaces: FactInformer[Labels] = FactInformer(NAMESPACES, _ignored, report)
        self.claims: FactInformer[str] = FactInformer(CLAIMS, _ignored, report)
        self.volumes: FactInformer[tuple[NodeTerm, ...]] = FactInformer(VOLUMES, _ignored, report)
        # Those that the ledger needs, and those that only narrow where VMs may move.
        self.informers: tuple[FactInformer[Any], ...] = (self.nodes, self.pods, self.vms, self.migrations)
        self.databases = PodDatabases(report, self._database_changed)
        self._extras: tuple[FactInformer[Any], ...] = (self.namespaces, self.claims, self.volumes)
        for informer in self._all():
            # A restored store shows in one kind first; the other caches may still hold the history that was lost.
            informer.on_restored = partial(self.restored, informer)
        self.addresses = PodAddresses()
        self._clock = clock
        self._report = report
        self._listed: set[str] = set()
        self.ready = asyncio.Event()
        self._is_refreshing = False
        # Last: it uses everything above.
        self.fill(ledger, queues, identity)

    def fill(self, ledger: Ledger, queues: OrderQueues, writer: str | None) -> None:
        """From now on changes go to this ledger; all that has already been read goes in at once.

        ``writer`` alone writes permits; None: another process decides.
        """
        self._ledger, self._queues, self._writer = ledger, queues, writer
        self._apply(_settings_read(self.settings))
        self._apply(events.RequestsFollow(self.settings.pod_requests, limits_cpu=self.settings.limits_cpu))
        # A new term gets its ledger while the caches are warm, so there is nothing to wait for.
        if not self.missing:
            self._resync()

    async def refresh(self) -> None:
        """Returns once all that was written to the cluster before this call has been read. ``fill`` a ledger then."""
        self._is_refreshing = True
        try:
            async with asyncio.TaskGroup() as tasks:
                for informer in self.informers:
                    tasks.create_task(informer.refresh())
        finally:
            # Also after a failure, or nothing would ever reach the ledger again.
            self._is_refreshing = False

    async def hold_back(self, span: Seconds) -> None:
        """Gives the ledger nothing until all kinds were listed, ``span`` has passed, and all were listed once more.

        Everything that an ended process had sent is then known. ``run`` must be running, and nothing listed yet.
        """
        await self.refresh()
        self._is_refreshing = True
        await self._clock.sleep(span)
        # A write that the ended process had in flight may land during the sleep; the second list shows it.
        await self.refresh()
        self._hand_over()

    async def run(self, api: KubernetesApi) -> None:
        """Keeps all informers in step for ever."""
        async with asyncio.TaskGroup() as tasks:
            for informer in self.informers:
                tasks.create_task(informer.run(api, self._clock, partial(self.listed, informer.kind.name)))
            for extra in self._extras:
                # Neither readiness nor the ledger waits for these kinds.
                tasks.create_task(extra.run(api, self._clock, _nothing))
            # Most clusters have no postgres in pods, and many lack these kinds.
            await self.databases.appeared.wait()
            for informer in self.databases.informers:
                tasks.create_task(informer.run(api, self._clock, partial(self.databases.listed, informer.kind.name)))

    def use(self, settings: SchedulerSettings) -> None:
        """New settings: every node's compute unit, watermark, reserve and price at once (S4.6, S4.8, S2.8b)."""
        self.settings = settings
        self._apply(_settings_read(settings))
        if not settings.pod_requests:  # off at once; on only after the API server has been asked
            self._apply(events.RequestsFollow(False))
        if self._ledger.is_ready:
            # Unit, watermark, reserve and price are part of a node's facts, so every node has to be computed again.
            for node in self.nodes.facts.values():
                self._apply(events.NodeSeen(node_facts(node, settings)))

    def feeds(self, ledger: Ledger) -> bool:
        """Return True if this ledger receives the changes; each term has its own."""
        return self._ledger is ledger

    def listed(self, kind: str) -> None:
        """An informer has listed everything; once all have, the ledger takes in the lists."""
        # A watch that could not be resumed lists again, too; its list has the changes that no event reported.
        self._listed.add(kind)
        self._hand_over()

    def _all(self) -> tuple[FactInformer[Any], ...]:
        return self.informers + self._extras + self.databases.informers

    def _hand_over(self) -> None:
        # All four kinds at once: a pod without its VM or node would be judged wrongly. During a refresh some lists are
        # older than others.
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

    def restored(self, witness: FactInformer[Any] | None = None) -> None:
        """The cluster's store was restored: everything is read again. The ``witness``, which noticed, already does."""
        # Nothing reaches the ledger until every kind has been listed from the restored store.
        self._listed.clear()
        # A restored store continues from an older version, so newer facts would look stale.
        self._apply(events.VersionsForgotten())
        for informer in self._all():
            if informer is not witness:
                informer.read_again()

    @property
    def missing(self) -> list[str]:
        """The kinds not listed yet, or not since a restore; the ledger gets nothing while there are any."""
        # A cluster without the CRD of migrations counts as having listed them.
        return sorted({informer.kind.name for informer in self.informers} - self._listed)

    @property
    def surroundings(self) -> ConstraintContext:
        """Everything except the ledger's facts that decides where a VM may go now."""
        # A cluster always has namespaces, so an empty table means that they could not be listed.
        namespaces = self.namespaces.facts or None
        is_current = self.pods.is_current and self.migrations.is_current
        return ConstraintContext(namespaces, self.claims.facts, self.volumes.facts, is_current)

    def vm_of(self, pod: PodFacts) -> VirtualMachine | None:
        """The VM that the pod runs, or the database in it, as far as it is known."""
        if pod.database is not None:
            return pod.database
        vm = None if pod.vm is None else self.vms.facts.get(pod.vm)
        # The target of a migration names its VM by a label only, without a UID.
        return vm if vm is not None and pod.vm_uid in ("", vm.uid) else None

    def pod(self, name: ObjectName, uid: str) -> PodFacts | None:
        """The pod of that name, if it has been seen and has this UID."""
        pod = self.pods.facts.get(name)
        return pod if pod is not None and pod.uid == uid else None

    def pod_at(self, name: ObjectName, uid: str, version: str) -> PodFacts | None:
        """The pod with this UID in this very version, if that is the one that is known."""
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
        # A pod of the same name with another UID is another pod, such as a StatefulSet makes: the old one is gone.
        if change.before is not None and (change.after is None or change.after.uid != change.before.uid):
            self._apply(events.PodGone(change.before.uid))
        if change.after is not None:
            # First its database: a pod takes its size from that.
            if change.after.database is not None:
                self._database_changed(change.after.database)
            self._apply(events.PodSeen(change.after))
        was = None if change.before is None else change.before.database
        if was is not None and (change.after is None or change.after.database is None):
            self._apply(events.VmGone(was.name))

    def _database_changed(self, database: PodDatabase) -> None:
        if self._ledger.is_ready:
            self._apply(events.VmSeen(self.databases.facts_of(database)))

    def _vm_changed(self, change: FactChange[VirtualMachine]) -> None:
        if not self._ledger.is_ready:
            return
        self._watch_for_rivals(change)
        if change.before is not None and (change.after is None or change.after.uid != change.before.uid):
            # A permit still to be written was decided for the VM that is gone.
            self._queues.permits.drop(change.name)
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

    def _watch_for_rivals(self, change: FactChange[VirtualMachine]) -> None:
        """Only one process may write permits at a time; reports any other."""
        before, after = change.before, change.after
        if self._writer is None or before is None or after is None or before.permit == after.permit:
            return
        writer = after.annotations.get(ANNOTATION_PERMIT_WRITER)
        if writer is None or decode_writer(writer) != self._writer:
            self._report.rival_seen(change.name, writer)


def _settings_read(settings: SchedulerSettings) -> events.SettingsRead:
    return events.SettingsRead(settings.ranking, settings.scheduler_name, settings.percent_of_nodes)


def _ignored(_: FactChange[T]) -> None:
    """Ignore the changes of a kind that is read only on demand."""


def _nothing() -> None:
    """Nothing waits for a list of such a kind."""
