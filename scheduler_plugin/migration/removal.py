"""Deletes VirtualMachineMigrations: cancels those that must not go on, and clears away those that are over (S4.9)."""

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
    """Deletes what it was last told to; a deletion that fails is repeated while it is still wanted."""

    def __init__(self, context: SchedulerContext) -> None:
        self._context = context
        self._unwanted: Mapping[ObjectName, str] = {}
        self._any_unwanted = asyncio.Event()

    def want(self, unwanted: Mapping[ObjectName, str]) -> None:
        """Replaces the migrations to delete: their names, and why."""
        self._unwanted = unwanted
        if unwanted:
            self._any_unwanted.set()

    async def run(self) -> Never:
        """Works for ever."""
        while True:
            await self._any_unwanted.wait()
            self._any_unwanted.clear()
            if not all(await for_each(list(self._unwanted), self._remove)):
                await self._context.clock.sleep(DELETE_RETRY)

    async def _remove(self, name: ObjectName) -> bool:
        """Delete the migration if it is still unwanted. Returns False if that failed."""
        why = self._unwanted.get(name)  # while others were deleted, this one may have become wanted
        migration = self._context.feed.migrations.facts.get(name)
        if why is None or migration is None or migration.facts.is_leaving:
            return True
        try:
            # With the UID: a person may have made another one of that name.
            await self._context.writer.delete_migration(name, migration.facts.uid)
        except ApiError as error:
            # Gone already is as good as deleted.
            if not (isinstance(error, ApiRefusedError) and error.kind is RefusalKind.NOT_FOUND):
                what = {"migration": str(name), "why": why, "reason": str(error)}
                LOG.warning(logs.NOT_DELETED, extra=what)
                return False
        return True
