"""Deletes VirtualMachineMigrations: cancels unwanted ones, and removes ended ones (S4.9)."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final, Never

from protocol.kubernetes.api import ApiError, ApiRefusedError
from protocol.kubernetes.refusals import RefusalKind
from protocol.messages import ObjectName
from protocol.units import Seconds
from scheduler_plugin.context import SchedulerContext
from scheduler_plugin.order_queues import for_each
from scheduler_plugin.telemetry import LOG
from scheduler_plugin.texts import logs

DELETE_RETRY: Final = Seconds(5.0)


class MigrationRemover:
    """Deletes the migrations of the last ``want``; retries while they are unwanted."""

    def __init__(self, context: SchedulerContext) -> None:
        self._context = context
        self._unwanted: Mapping[ObjectName, str] = {}
        self._any_unwanted = asyncio.Event()

    def want(self, unwanted: Mapping[ObjectName, str]) -> None:
        """Replace the migrations to delete: names and reasons."""
        self._unwanted = unwanted
        if unwanted:
            self._any_unwanted.set()

    async def run(self) -> Never:
        """Run until cancelled."""
        while True:
            await self._any_unwanted.wait()
            self._any_unwanted.clear()
            if not all(await for_each(list(self._unwanted), self._remove)):
                await self._context.clock.sleep(DELETE_RETRY)

    async def _remove(self, name: ObjectName) -> bool:
        """Delete the migration if it is still unwanted. Return False on failure."""
        why = self._unwanted.get(name)  # may have changed while others were deleted
        migration = self._context.feed.migrations.facts.get(name)
        if why is None or migration is None or migration.facts.is_leaving:
            return True
        try:
            # With the UID: someone may have recreated it under the same name.
            await self._context.writer.delete_migration(name, migration.facts.uid)
        except ApiError as error:
            # Already deleted is fine.
            if not (isinstance(error, ApiRefusedError) and error.kind is RefusalKind.NOT_FOUND):
                what = {"migration": str(name), "why": why, "reason": str(error)}
                LOG.warning(logs.NOT_DELETED, extra=what)
                return False
        return True
