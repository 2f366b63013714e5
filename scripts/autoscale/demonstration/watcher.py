"""Watches one database: its size as soon as it changes, and its agent's explanation once a second."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from deploy.kube.informer import Informer, ObjectChange
from protocol.kubernetes.api import ApiError
from protocol.kubernetes.conditions import condition_of
from protocol.kubernetes.objects import Json, child, text
from protocol.kubernetes.resources import PODS
from protocol.messages import ObjectName
from protocol.pod_database import parse_pod_database
from protocol.runtime.clock import Clock
from protocol.units import Bytes, Instant, MilliCpu, Resources
from protocol.virtual_machine import InvalidObjectError
from scheduler_plugin.databases import database_node, database_object, is_pod
from scripts.autoscale.demonstration.waiting import together
from scripts.autoscale.site import Site, SitePods, agent_says

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
        objects = Informer(self.site.client, kind, self.clock)
        objects.listen(self._changed)
        await together(objects.run(), self._ask())

    def snapshot(self) -> Snapshot:
        """The present state."""
        metrics, status = child(self.explained, "metrics"), child(self.found, "status")
        busy, used = metrics.get("cores_busy"), text(metrics, "mem_used")
        available = condition_of(self.found, "Ready" if is_pod(self.found) else "Available")
        return Snapshot(
            phase=text(status, "phase") or "Pending",
            node=database_node(self.found),
            size=size_of(self.found),
            most=_most(self.found),
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
        size = size_of(self.found)
        if size is not None:
            self.on_size(size)
            # A new size is explained at once and not after the next second.
            self._stir.set()

    async def _ask(self) -> None:
        while True:
            self._stir.clear()
            if is_pod(self.found) or text(self.found, "status", "podName"):
                # An agent that does not answer leaves its last explanation in place.
                self.explained = await self._explanation() or self.explained
                self._tell()
            await self.clock.wait(self._stir, Instant(self.clock.now() + _EVERY))

    def _tell(self) -> None:
        size = size_of(self.found)
        if size is not None and size != self._told:
            self._told = size
            self.on_reason(size, text(self.explained, "because"))

    async def _explanation(self) -> Json | None:
        try:
            listed = await self.site.client.list(PODS)
        except ApiError:
            return None
        return await agent_says(self.site, self.found, SitePods.of(listed.objects))


def size_of(vm: Json) -> Resources | None:
    """The size that the VM or pod is seen to have; None while it has none (pure)."""
    if is_pod(vm):
        return _of_pod(vm)[0]
    cpu, mem = text(vm, "status", "cpus"), text(vm, "status", "memorySize")
    return Resources.parse(cpu, mem) if cpu and mem else None


def _most(vm: Json) -> Resources | None:
    if is_pod(vm):
        return _of_pod(vm)[1]
    guest = child(vm, "spec", "guest")
    cpu, slots, slot = (
        child(guest, "cpus").get("max"),
        child(guest, "memorySlots").get("max"),
        text(guest, "memorySlotSize"),
    )
    # The definition allows integers and quantities for CPUs.
    if not isinstance(cpu, (int, str)) or not isinstance(slots, int) or not slot:
        return None
    return Resources(MilliCpu.parse(cpu), Bytes.parse(slot) * slots)


def _of_pod(pod: Json) -> tuple[Resources | None, Resources | None]:
    """The size of its postgres by the kubelet, and the largest that it may have."""
    try:
        database = parse_pod_database(pod)
    except InvalidObjectError:
        return None, None
    return database.actual, database.bounds.max
