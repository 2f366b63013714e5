"""Watches one database: its size as soon as it changes, and its agent's explanation once a second."""

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
from scripts.autoscale.demonstration.waiting import together
from scripts.autoscale.site import Site, SiteSources

_EVERY: Final = 1.0


@dataclass(frozen=True, slots=True)
class Snapshot:
    """State of the database now. ``size`` is None while it has none; used amounts None if unknown."""

    phase: str
    node: str
    size: Resources | None
    most: Resources | None
    available: bool
    used_cpu: float | None
    used_memory: Bytes | None
    because: str
    condition: str = ""
    """What the runtime last said of it."""


@dataclass(slots=True)
class Watcher:
    """Run ``run`` in a task. ``on_size`` hears of every size that the database is seen to have, at once; ``on_reason``
    hears of each a little later, with the agent's reason. ``vm`` may be the name of a database in a pod.
    """

    site: Site
    vm: ObjectName
    clock: Clock
    on_size: Callable[[Resources], None]
    on_reason: Callable[[Resources, str], None]
    explained: Json = field(default_factory=dict)
    found: Json = field(default_factory=dict)
    _stir: asyncio.Event = field(default_factory=asyncio.Event)
    _told: Resources | None = None

    async def run(self) -> None:
        """Watches until cancelled."""
        kind, _ = database_object(self.vm)
        objects, sources = Informer(self.site.client, kind, self.clock), SiteSources(self.site, self.clock)
        objects.listen(self._changed)
        await together(objects.run(), sources.pods.run(), self._ask(sources))

    def snapshot(self) -> Snapshot:
        """The present state."""
        metrics, (size, most) = child(self.explained, "metrics"), sizes_of(self.found)
        busy, used = metrics.get("cores_busy"), text(metrics, "mem_used")
        available = condition_of(self.found, "Ready" if is_pod(self.found) else "Available")
        return Snapshot(
            phase=text(self.found, "status", "phase") or "Pending",
            node=database_node(self.found),
            size=size,
            most=most,
            available=text(available, "status") == "True",
            used_cpu=float(busy) if isinstance(busy, (int, float)) else None,
            used_memory=Bytes.parse(used) if used else None,
            because=text(self.explained, "because"),
            condition=text(available, "message") if available else "it has no pod yet",
        )

    def _changed(self, change: ObjectChange) -> None:
        _, name = database_object(self.vm)
        if change.name != name:
            return
        # What is deleted has no state; fields of the old object would look alive.
        self.found = change.after or {}
        size, _ = sizes_of(self.found)
        if size is not None:
            self.on_size(size)
            # A new size is explained at once and not after the next second.
            self._stir.set()

    async def _ask(self, sources: SiteSources) -> None:
        while True:
            self._stir.clear()
            if is_pod(self.found) or text(self.found, "status", "podName"):
                # An agent that does not answer leaves its last explanation in place.
                self.explained = await sources.of_vm(self.found) or self.explained
                self._tell()
            await self.clock.wait(self._stir, Instant(self.clock.now() + _EVERY))

    def _tell(self) -> None:
        size, _ = sizes_of(self.found)
        if size is not None and size != self._told:
            self._told = size
            self.on_reason(size, text(self.explained, "because"))


def sizes_of(database: Json) -> tuple[Resources | None, Resources | None]:
    """The size that a VM or pod is seen to have, and the largest that it may have; None if unknown (pure)."""
    try:
        parsed = parse_database(database)
    except InvalidObjectError:
        return None, None
    return parsed.actual, parsed.bounds.max
