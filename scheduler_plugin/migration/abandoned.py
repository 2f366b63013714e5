"""Releases deleted migrations of ours whose VM is gone, because NeonVM's controller never does (B.11).

It removes its finalizer only from migrations of existing VMs. A migration is deleted with its VM, so it would stay
forever, and with it its namespace.
"""

from __future__ import annotations

from typing import Final, Never

from protocol.kubernetes.api import ApiError, Tolerating
from protocol.kubernetes.refusals import RefusalKind
from protocol.names import FINALIZER
from protocol.units import Seconds
from scheduler_plugin.cluster.migrations import ClusterMigration
from scheduler_plugin.context import SchedulerContext
from scheduler_plugin.order_queues import for_each
from scheduler_plugin.telemetry import LOG
from scheduler_plugin.texts import logs

LOOK_INTERVAL: Final = Seconds(60.0)
"""Our own controller releases them within seconds."""


class AbandonedMigrations:
    """Removes the finalizer of migrations that were abandoned at two looks in a row."""

    def __init__(self, context: SchedulerContext) -> None:
        self._context = context
        self._seen: set[str] = set()

    async def run(self) -> Never:
        """Run until cancelled."""
        while True:
            await self._context.clock.sleep(LOOK_INTERVAL)
            abandoned = self._abandoned()
            due = [migration for uid, migration in abandoned.items() if uid in self._seen]
            self._seen = set(abandoned)
            await for_each(due, self._release)

    def _abandoned(self) -> dict[str, ClusterMigration]:
        """The abandoned migrations by UID."""
        if not self._context.ledger.is_ready:
            return {}
        feed = self._context.feed
        return {
            migration.facts.uid: migration
            for migration in feed.migrations.facts.values()
            if migration.facts.is_terminating
            and migration.facts.is_ours
            and FINALIZER in migration.finalizers
            and migration.facts.vm not in feed.vms.facts
        }

    async def _release(self, migration: ClusterMigration) -> None:
        facts = migration.facts
        others = [finalizer for finalizer in migration.finalizers if finalizer != FINALIZER]
        try:
            with Tolerating(RefusalKind.NOT_FOUND):
                await self._context.writer.release_migration(facts.name, facts.uid, facts.version, others)
        # It is tried again after ``LOOK_INTERVAL``.
        except ApiError as error:
            LOG.warning(logs.NOT_RELEASED, extra={"migration": str(facts.name), "reason": str(error)})
            return
        LOG.info(logs.RELEASED, extra={"migration": str(facts.name), "vm": str(facts.vm)})
