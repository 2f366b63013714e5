"""Records Events about problems of objects, once per problem, by comparing two rounds over all objects."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Final, Never

from protocol.runtime.kubernetes.events import EventRecord
from protocol.units import Seconds
from scheduler_plugin.cluster.problems import pod_events, unreadable_event, unreadable_objects, vm_events
from scheduler_plugin.context import SchedulerContext
from scheduler_plugin.workers.event_recorder import SchedulerEvents

INTERVAL: Final = Seconds(10.0)
YIELD_EVERY: Final = 256
"""Number of VMs checked before other tasks run."""


class ProblemWatcher:
    """Looks for problems in the background."""

    def __init__(self, context: SchedulerContext, events: SchedulerEvents) -> None:
        self._context = context
        self._events = events
        self._reported: set[tuple[str, str]] = set()

    async def run(self) -> Never:
        """Check all objects every ``INTERVAL`` until cancelled."""
        while True:
            await self._context.clock.sleep(INTERVAL)
            await self._round()

    async def _round(self) -> None:
        current = set()
        async for event in self._problems():
            key = event.path, event.name or ""
            current.add(key)
            if key not in self._reported:
                self._events.record(event)
        # Replaced, so that a recurring problem is reported again.
        self._reported = current

    async def _problems(self) -> AsyncIterator[EventRecord]:
        feed = self._context.feed
        # The feed may change while this generator is suspended.
        for resource, unreadable in list(unreadable_objects(feed)):
            if unreadable.name.name:
                yield unreadable_event(resource, unreadable)
        for count, vm in enumerate(list(feed.vms.facts.values()), start=1):
            if vm.name not in feed.vms.unreadable:
                for event in vm_events(vm, feed.settings):
                    yield event
            if count % YIELD_EVERY == 0:
                # Let other tasks answer agents and kube-scheduler.
                await asyncio.sleep(0)
        for count, pod in enumerate(list(feed.databases.known.values()), start=1):
            for event in pod_events(feed, pod):
                yield event
            if count % YIELD_EVERY == 0:
                await asyncio.sleep(0)
