"""The scenario of a full node, for a database in a pod: growth on its full node is denied until a neighbour leaves."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Final

from protocol.kubernetes.conditions import is_condition_true
from protocol.kubernetes.objects import child, items, text
from protocol.kubernetes.resources import PODS
from protocol.messages import ObjectName
from protocol.runtime.clock import Clock, poll_until, wait_until
from protocol.units import ZERO, MilliCpu, Resources, Seconds
from scheduler_plugin.databases import database_url
from scripts.autoscale.demonstration.pods.pod_database import idle_pod
from scripts.autoscale.demonstration.report import RoomPoint
from scripts.autoscale.demonstration.watcher import Watcher
from scripts.autoscale.site import Site, SiteError

NEIGHBOUR: Final = ObjectName("default", "neighbour")
_START: Final = Seconds(30.0)
_SEEN: Final = Seconds(15.0)
"""Timeout until the scheduler counts the neighbour, and until a growth is denied."""
_EXPLAINED: Final = Seconds(3.0)
_STAYS: Final = Seconds(8.0)
"""Time for which the node stays full."""
_ROOM: Final = Seconds(15.0)


@dataclass(slots=True)
class FullNodeScenario:
    """A neighbour takes all free CPU of the node of ``watcher``'s database, and leaves under load."""

    site: Site
    clock: Clock
    announce: Callable[[str], None]
    watcher: Watcher

    async def fill_node(self) -> None:
        """Fills the node with a neighbour. Raises ``SiteError``."""
        node = self.watcher.snapshot().node
        free = await self._free(node)
        if free is None:
            raise SiteError(f"the scheduler does not report the free CPU of {node}")
        await self.site.client.create(PODS, NEIGHBOUR.namespace, idle_pod(NEIGHBOUR, node, free))
        if not await poll_until(self._runs, self.clock, _START):
            raise SiteError(f"{NEIGHBOUR.name} did not start on {node}")
        if not await poll_until(lambda: self._is_full(node), self.clock, _SEEN):
            raise SiteError(f"the scheduler does not count {NEIGHBOUR.name} on {node}")
        self.announce(f"{NEIGHBOUR.name} has taken the remaining {free.as_cores:g} vCPU of {node}")

    async def play(self, load: Callable[[], Coroutine[object, object, None]]) -> RoomPoint:
        """Loads the database until growth is denied, then removes the neighbour and waits for the growth."""
        before, began = self.watcher.snapshot(), self.clock.now()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(load())
            is_denied = await wait_until(self._is_denied, self.clock, _SEEN)
            denied = round(self.clock.now() - began, 2) if is_denied else None
            reason = await self._reason() if is_denied else ""
            self.announce(f"denied: {reason}" if is_denied else "nothing was denied")
            await self.clock.sleep(_STAYS)
            left = self.clock.now()
            await self.site.client.delete(PODS, NEIGHBOUR)
            self.announce(f"{NEIGHBOUR.name} has left")
            grew = await wait_until(lambda: self._has_more_than(before.size), self.clock, _ROOM)
            room = round(self.clock.now() - left, 2) if grew else None
        return RoomPoint(NEIGHBOUR.name, before.node, denied, reason, room)

    async def _free(self, node: str) -> MilliCpu | None:
        """The CPU that the scheduler can still reserve there; None if unknown."""
        nodes = items(await self.site.of_scheduler("/nodes") or {}, "nodes")
        account = next((account for account in nodes if text(account, "name") == node), None)
        if account is None:
            return None
        total, reserved = (MilliCpu.parse(text(account, part, "cpu")) for part in ("total", "reserved"))
        return total.minus_or_zero(reserved)

    async def _is_full(self, node: str) -> bool:
        return await self._free(node) == ZERO.cpu

    async def _runs(self) -> bool:
        return is_condition_true(await self.site.client.get(PODS, NEIGHBOUR), "Ready")

    def _is_denied(self) -> bool:
        return bool(child(self.watcher.explanation, "denied"))

    async def _reason(self) -> str:
        """The scheduler's reason for the denial; the agent's if the scheduler does not respond in time."""
        reasons = [""]

        async def is_explained() -> bool:
            explained = await self.site.of_scheduler(f"/explain/{database_url(self.watcher.vm)}") or {}
            reasons.extend(reason for pod in items(explained, "pods") if (reason := text(pod, "deniedBy")))
            return bool(reasons[-1])

        # On a busy machine the scheduler may be slow to answer.
        await poll_until(is_explained, self.clock, _EXPLAINED)
        return reasons[-1] or self.watcher.snapshot().because

    def _has_more_than(self, size: Resources | None) -> bool:
        now = self.watcher.snapshot().size
        return size is not None and now is not None and now.cpu > size.cpu
