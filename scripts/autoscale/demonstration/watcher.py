"""Watches a database: its size as soon as it changes, and its agent's explanation once a second."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from deploy.kube.informer import Informer, ObjectChange
from protocol.kubernetes.conditions import condition_of
from protocol.kubernetes.objects import Json, child, text
from protocol.messages import ObjectName
from protocol.runtime.clock import Clock
from protocol.units import Bytes, Instant, Resources
from protocol.virtual_machine import InvalidObjectError
from scheduler_plugin.databases import database_node, database_object, is_pod, parse_database
from scripts.autoscale.demonstration.waiting import run_all
from scripts.autoscale.site import Site, SiteSources

_EVERY: Final = 1.0


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Current state of a database. ``size`` is None until it has one; used amounts are None if unknown."""

    phase: str
    node: str
    size: Resources | None
    max_size: Resources | None
    available: bool
    used_cpu: float | None
    used_memory: Bytes | None
    because: str
    condition: str = ""
    """The message of its condition ``Ready`` or ``Available``."""


@dataclass(slots=True)
class Watcher:
    """Watches the database ``vm``, a VM or pod; run ``run`` in a task.

    Calls ``on_size`` immediately with each observed size, and ``on_reason`` a little later with the agent's reason.
    """

    site: Site
    vm: ObjectName
    clock: Clock
    on_size: Callable[[Resources], None]
    on_reason: Callable[[Resources, str], None]
    explanation: Json = field(default_factory=dict)
    database: Json = field(default_factory=dict)
    _resized: asyncio.Event = field(default_factory=asyncio.Event)
    _reported: Resources | None = None

    async def run(self) -> None:
        """Watches until cancelled."""
        kind, _ = database_object(self.vm)
        objects, sources = Informer(self.site.client, kind, self.clock), SiteSources(self.site, self.clock)
        objects.listen(self._changed)
        await run_all(objects.run(), sources.pods.run(), self._query_agent(sources))

    def snapshot(self) -> Snapshot:
        """The current state."""
        metrics, (size, max_size) = child(self.explanation, "metrics"), sizes_of(self.database)
        busy, used = metrics.get("cores_busy"), text(metrics, "mem_used")
        available = condition_of(self.database, "Ready" if is_pod(self.database) else "Available")
        return Snapshot(
            phase=text(self.database, "status", "phase") or "Pending",
            node=database_node(self.database),
            size=size,
            max_size=max_size,
            available=text(available, "status") == "True",
            used_cpu=float(busy) if isinstance(busy, (int, float)) else None,
            used_memory=Bytes.parse(used) if used else None,
            because=text(self.explanation, "because"),
            condition=text(available, "message") if available else "it has no pod yet",
        )

    def _changed(self, change: ObjectChange) -> None:
        _, name = database_object(self.vm)
        if change.name != name:
            return
        # Empty after a deletion: the old object would look alive.
        self.database = change.after or {}
        size, _ = sizes_of(self.database)
        if size is not None:
            self.on_size(size)
            # Explain a new size immediately instead of after a second.
            self._resized.set()

    async def _query_agent(self, sources: SiteSources) -> None:
        while True:
            self._resized.clear()
            if is_pod(self.database) or text(self.database, "status", "podName"):
                # If the agent does not respond, keep its last explanation.
                self.explanation = await sources.of_vm(self.database) or self.explanation
                self._report_size()
            await self.clock.wait(self._resized, Instant(self.clock.now() + _EVERY))

    def _report_size(self) -> None:
        size, _ = sizes_of(self.database)
        if size is not None and size != self._reported:
            self._reported = size
            self.on_reason(size, text(self.explanation, "because"))


def sizes_of(database: Json) -> tuple[Resources | None, Resources | None]:
    """The actual and maximum size of a VM or pod; None if unknown (pure)."""
    try:
        parsed = parse_database(database)
    except InvalidObjectError:
        return None, None
    return parsed.actual, parsed.bounds.max
