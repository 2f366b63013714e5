"""A cluster whose VMs boot at once and whose databases report what a test sets, with the groups program."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

from msgspec import structs

from protocol.guest.database import DatabaseState
from protocol.kubernetes.objects import Json, JsonObject, annotations_of, child, items, labels_of, name_of, text
from protocol.kubernetes.resources import ENDPOINT_SLICES, VIRTUAL_MACHINES, VM_GROUPS
from protocol.names import ANNOTATION_DRAINING
from protocol.units import Seconds
from scheduler_plugin.groups.app import GroupsProgram, assemble
from scheduler_plugin.groups.core.replicas.scaling import AgentCpuCount
from scheduler_plugin.groups.objects.vm_use import GuestUse
from scheduler_plugin.groups.settings import GroupsLease, GroupsSettings
from tests.fake_clock import FakeClock
from tests.scheduler_plugin.groups.core.replicas.group_story import STANDBY
from tests.scheduler_plugin.groups.objects.sample_group import shop
from tests.scheduler_plugin.groups.program.cluster import Connection, EmbeddedCluster
from tests.scheduler_plugin.groups.program.running import UNFOLLOWED

FOLLOWED_SOON = GroupsSettings(lease=GroupsLease(duration_seconds=4, renew_seconds=1.0))
"""Where one process follows another within seconds."""


@dataclass
class Databases:
    """``MemberAgents``: every replica streams, except where ``said`` says something else by its name."""

    clock: FakeClock
    said: dict[str, DatabaseState | None] = field(default_factory=dict)
    busy: dict[str, float] = field(default_factory=dict)
    used: dict[str, GuestUse] = field(default_factory=dict)
    counted: dict[str, tuple[float, float]] = field(default_factory=dict)

    async def database(self, vm: JsonObject) -> DatabaseState | None:
        return self.said.get(name_of(vm).name, STANDBY)

    async def use(self, vm: JsonObject) -> GuestUse:
        name = name_of(vm).name
        return replace(self.used.get(name, GuestUse()), cores_busy=self.busy.get(name))

    async def cpu_count(self, vm: JsonObject) -> AgentCpuCount | None:
        """Report CPU time as if the guest had been ``busy`` since the last sample."""
        name, now = name_of(vm).name, float(self.clock.now())
        if name not in self.busy:
            return None
        before, used = self.counted.get(name, (now, 0.0))
        self.counted[name] = now, used + (now - before) * self.busy[name]
        return AgentCpuCount(Seconds(self.counted[name][1]), Seconds(now))


class Story:
    """One group in one cluster."""

    def __init__(self, settings: GroupsSettings) -> None:
        self.clock = FakeClock()
        self._settings = settings
        self.cluster = EmbeddedCluster(self.clock)
        self.databases = Databases(self.clock)
        self.boots = True
        self._booted = 0
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self, way: Connection | None = None, settings: GroupsSettings | None = None) -> GroupsProgram:
        """One more process of the program."""
        settings = settings or self._settings
        way = way or self.cluster.connection()
        identity = f"process-{len(self._tasks)}"
        program = assemble(way, self.clock, settings, identity, agents=self.databases)
        self._tasks.append(asyncio.create_task(program.run(way, self.clock)))
        await self.pass_time(3)
        return program

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks.clear()

    async def create(self, **spec: object) -> None:
        """Makes the group ``shop``."""
        body = shop(**spec)
        body["metadata"] = {"name": "shop", "namespace": "default"}
        await self.cluster.request("POST", VM_GROUPS.path("default"), body)

    async def scale(self, replicas: int) -> None:
        await self.cluster.patch(VM_GROUPS, "shop", {"spec": {"replicas": replicas}}, "scale")

    async def pass_time(self, seconds: float) -> None:
        """Lets time pass, second by second; VMs that were made boot."""
        for _ in range(int(seconds)):
            if self.boots:
                await self.boot()
            await self.clock.advance(1.0)

    async def boot(self) -> None:
        """Every VM that has no address gets one and serves."""
        for vm in await self.cluster.every(VIRTUAL_MACHINES):
            if not text(vm, "status", "extraNetIP"):
                await self.serve(name_of(vm).name, f"10.100.128.{self._booted}")
                self._booted += 1

    async def serve(self, vm: str, address: str = "", available: bool = True) -> None:
        conditions = [{"type": "Available", "status": str(available)}]
        place = {"extraNetIP": address, "podIP": address, "node": "node-1"} if address else {}
        await self.cluster.patch(VIRTUAL_MACHINES, vm, {"status": {**place, "conditions": conditions}}, "status")

    async def vms(self) -> dict[str, str]:
        """Every VM with its source, or that it drains."""
        return {name_of(vm).name.removeprefix("shop-"): _does(vm) for vm in await self.cluster.every(VIRTUAL_MACHINES)}

    async def offered(self) -> list[str]:
        """The addresses that the read endpoint offers to new clients."""
        found = await self.cluster.get(ENDPOINT_SLICES, "shop-read")
        ready = [each for each in items(found, "endpoints") if child(each, "conditions")["ready"] is True]
        return [text(each, "targetRef", "name").removeprefix("shop-") for each in ready]

    async def status(self) -> Json:
        return child(await self.cluster.get(VM_GROUPS, "shop"), "status")


def _does(vm: JsonObject) -> str:
    if ANNOTATION_DRAINING in annotations_of(vm):
        return "drains"
    return labels_of(vm)["autoscaling.neon.tech/role"]


def with_sessions(count: int, oldest: float | None = None) -> DatabaseState:
    """A standby that this many clients use."""
    return structs.replace(STANDBY, sessions=count, oldest_transaction=oldest)


@asynccontextmanager
async def story(settings: GroupsSettings = UNFOLLOWED) -> AsyncIterator[Story]:
    """A cluster without a group, and without the program."""
    found = Story(settings)
    await found.cluster.prepare()
    try:
        yield found
    finally:
        await found.stop()
