"""The demonstration's acts, one after the other, each with an end in sight."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final

from deploy.local.clock import Clock
from deploy.local.kube.objects import VIRTUAL_MACHINES, Json
from protocol.messages import ObjectName
from protocol.names import ANNOTATION_CONFIG, LABEL_ENABLED, VM_GROUP, VM_VERSION
from protocol.units import Instant, Resources, Seconds
from scripts.autoscale.demonstration.loads import LoadMaker
from scripts.autoscale.demonstration.report import LoadPoint, Observations
from scripts.autoscale.demonstration.screen import Screen
from scripts.autoscale.demonstration.watcher import Watcher
from scripts.autoscale.site import Site, SiteError

DEMO_VM: Final = ObjectName("default", "demo")
_POLICY: Final = '{"shrink": {"window": "20s"}}'
"""A demonstration has no minute to wait for the proof that less is enough; everything else is the default."""
_BOOT: Final = Seconds(120.0)
_SETTLE: Final = Seconds(20.0)
_MAKE_ROOM: Final = Seconds(60.0)
_SHRINK: Final = Seconds(90.0)
_FRAME: Final = Seconds(0.25)


def demo_vm() -> Json:
    """The VM that is shown (pure)."""
    return {
        "apiVersion": f"{VM_GROUP}/{VM_VERSION}",
        "kind": "VirtualMachine",
        "metadata": {
            "name": DEMO_VM.name,
            "labels": {LABEL_ENABLED: "true"},
            "annotations": {ANNOTATION_CONFIG: _POLICY},
        },
        "spec": {
            "schedulerName": "autoscale-scheduler",
            "guest": {
                "cpus": {"min": 1, "max": 4, "use": 1},
                "memorySlotSize": "128Mi",
                "memorySlots": {"min": 2, "max": 8, "use": 2},
                "rootDisk": {"image": "localhost:5001/postgres-vm:latest"},
                "ports": [{"name": "postgres", "port": 5432}],
            },
        },
    }


@dataclass(slots=True)
class Play:
    """One demonstration. ``make_load`` is called once the VM answers."""

    site: Site
    screen: Screen
    clock: Clock
    seen: Observations
    make_load: Callable[[Json], Awaitable[LoadMaker]]
    load_seconds: int
    began: Instant
    act: str = "boot"
    tps: float | None = None
    watcher: Watcher = field(init=False)

    def __post_init__(self) -> None:
        self.watcher = Watcher(self.site, DEMO_VM, self.clock, self._sized, self._reasoned)

    async def run(self) -> None:
        """Plays all acts. Raises ``SiteError`` where one cannot be played."""
        async with asyncio.TaskGroup() as tasks:
            company = [tasks.create_task(self.watcher.run()), tasks.create_task(self._draw())]
            await self._acts()
            for each in company:
                each.cancel()

    async def _acts(self) -> None:
        await self.site.client.create(VIRTUAL_MACHINES, DEMO_VM.namespace, demo_vm())
        if not await self._until(lambda: self.watcher.glance().available, _BOOT):
            raise SiteError(f"the VM did not come up within {_BOOT:g} s; see: kubectl describe neonvm {DEMO_VM.name}")
        self.screen.decided(self.elapsed(), "the VM runs and its database answers")
        load = await self.make_load(self.watcher.found)
        self.act = "prepare"
        await load.prepare()
        self.act = "settle"
        await self._until(self._is_least, _SETTLE)
        if not await self._until(self._has_room, _MAKE_ROOM):
            raise SiteError("the VM stays large without load, so that it could not be seen to grow")
        await self._load(load)
        self.act = "idle"
        await self._until(self._has_shrunk, _SHRINK)

    async def _load(self, load: LoadMaker) -> None:
        self.act, self.seen.load_began = "load", self.elapsed()
        self.screen.decided(self.elapsed(), f"load for {self.load_seconds} s")
        outcome = await load.press(self.load_seconds, self._heard)
        self.tps, self.seen.load_ended = None, self.elapsed()
        self.seen.transactions, self.seen.failed = outcome.transactions, outcome.failed
        self.seen.load_problem = outcome.problem
        done = f": {outcome.transactions} transactions, {outcome.failed} failed" if not self.seen.is_simulated else ""
        self.screen.decided(self.elapsed(), f"the load has ended{done}; waiting for the VM to shrink")

    def elapsed(self) -> Seconds:
        """Seconds since the demonstration began."""
        return Seconds(self.clock.now() - self.began)

    def _sized(self, size: Resources) -> None:
        self.seen.saw(self.elapsed(), size)

    def _reasoned(self, size: Resources, because: str) -> None:
        self.screen.decided(self.elapsed(), f"{size}" + (f": {because}" if because else ""))

    def _heard(self, tps: float) -> None:
        self.tps = tps
        self.seen.tps.append(LoadPoint(round(self.elapsed(), 1), tps))

    def _is_least(self) -> bool:
        size = self.watcher.glance().size
        return size is not None and size == self.seen.sizes[0][1]

    def _has_room(self) -> bool:
        glance = self.watcher.glance()
        return glance.size is not None and glance.most is not None and glance.size.cpu * 2 <= glance.most.cpu

    def _has_shrunk(self) -> bool:
        began = self.seen.load_began
        start = self.seen.size_at(began) if began is not None else None
        size = self.watcher.glance().size
        return start is not None and size is not None and size.within(start)

    async def _until(self, holds: Callable[[], bool], at_most: Seconds) -> bool:
        deadline = self.clock.now() + at_most
        while not holds():
            if self.clock.now() >= deadline:
                return False
            await self.clock.sleep(Seconds(0.05))
        return True

    async def _draw(self) -> None:
        while True:
            self.screen.show(self.elapsed(), self.act, self.watcher.glance(), self.tps)
            await self.clock.sleep(_FRAME)
