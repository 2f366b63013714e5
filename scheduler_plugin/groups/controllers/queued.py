"""What the controllers of groups have in common: names wait in a queue, and a few workers reconcile them."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from protocol.kubernetes.api import ApiError
from protocol.kubernetes.resources import Resource
from protocol.messages import ObjectName
from protocol.runtime.clock import Clock
from protocol.runtime.kubernetes.lease import NotLeadingError
from protocol.runtime.kubernetes.work_queue import WorkQueue
from protocol.units import Seconds
from scheduler_plugin.groups.controllers.cache import Cache
from scheduler_plugin.groups.controllers.writer import Writer
from scheduler_plugin.groups.telemetry import GroupsTelemetry

# More than one, so that a group whose look waits for the API does not hold up all others.
WORKERS: Final = 4


@dataclass(frozen=True, slots=True)
class GroupsContext:
    """Objects that all controllers share. ``interval`` is the time between reconciles of a group, in seconds."""

    cache: Cache
    writer: Writer
    clock: Clock
    telemetry: GroupsTelemetry
    interval: Callable[[], Seconds]


class QueuedController(ABC):
    """Looks at the groups of one ``kind``, each by itself; subclasses implement ``reconcile``."""

    def __init__(self, context: GroupsContext, kind: Resource) -> None:
        self.kind = kind
        self._context = context
        self._queue = WorkQueue(context.clock)

    def look_at(self, name: ObjectName) -> None:
        """Queues one group."""
        self._queue.add(name)

    def look_at_all(self) -> None:
        """Queues every group."""
        for name in self._context.cache.objects(self.kind):
            self._queue.add(name)

    async def run(self) -> None:
        """Works until cancelled."""
        # Before the first list every target would seem to be missing.
        await self._context.cache.synced.wait()
        async with asyncio.TaskGroup() as workers:
            for _ in range(WORKERS):
                # Errors of the API and a lost Lease are expected; any other exception is logged too. Both are retried.
                workers.create_task(self._queue.serve(self.reconcile, (ApiError, NotLeadingError)))

    @abstractmethod
    async def reconcile(self, name: ObjectName) -> None:
        """Looks at one group and writes what is due. Raises ``ApiError`` and ``NotLeadingError``."""
