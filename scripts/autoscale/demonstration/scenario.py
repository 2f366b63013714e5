"""The demonstration's steps, one after the other, each with a limit of its own."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from deploy.kube.client import ApiClient
from protocol.kubernetes.objects import Json, child, items
from protocol.messages import ObjectName
from protocol.names import ANNOTATION_CONFIG
from protocol.runtime.beside import beside
from protocol.runtime.clock import Clock
from protocol.units import Instant, Resources, Seconds
from scripts.autoscale.demonstration.fleet import fleet_row
from scripts.autoscale.demonstration.group_scenario import GroupScenario
from scripts.autoscale.demonstration.loads import Press
from scripts.autoscale.demonstration.migration_scenario import MigrationScenario
from scripts.autoscale.demonstration.pods.full_node import FullNodeScenario
from scripts.autoscale.demonstration.pods.pod_database import DEMO_POD, create_pod_database
from scripts.autoscale.demonstration.report import LoadPoint, Observations
from scripts.autoscale.demonstration.screen import Fleet, Screen
from scripts.autoscale.demonstration.sleep.sleep_scenario import SleepScenario
from scripts.autoscale.demonstration.vm_database import create_vm, kept_in_place, postgres_vm
from scripts.autoscale.demonstration.waiting import comes, watch_for_ends
from scripts.autoscale.demonstration.watcher import Watcher
from scripts.autoscale.site import Site, SiteError

DEMO_VM: Final = ObjectName("default", "demo")
POLICY: Final = (
    '{"smoothing": {"cpu": [{"hold": {"window": "20s"}}], "memory": [{"hold": {"window": "20s"}}]}, '
    '"memory": {"cache": {"watch": "5s"}}}'
)
"""A demonstration has no minutes to wait for the proof that less is enough; see docs/policies.md."""
_BOOT: Final = Seconds(600.0)
"""An emulated guest on a busy machine; one that has ended is not waited for."""
_SETTLE: Final = Seconds(20.0)
_STILL: Final = 6.0
"""Seconds without a change of size after which the guest is not busy with the last one any more."""
_MAKE_ROOM: Final = Seconds(60.0)
_SHRINK: Final = Seconds(90.0)
_FRAME: Final = Seconds(0.25)
_LOOK_AROUND: Final = Seconds(0.5)
_CROWDED: Final = 30
"""Seconds of load in the second part."""


def demo_vm() -> Json:
    """The VM that is shown, which grows and does not move (pure)."""
    vm = postgres_vm(DEMO_VM, cpus=4, slots=8)
    return kept_in_place({**vm, "metadata": {**child(vm, "metadata"), "annotations": {ANNOTATION_CONFIG: POLICY}}})


@dataclass(frozen=True, slots=True)
class Subject:
    """The database that is shown, VM or pod, and what creates it."""

    name: ObjectName
    word: str
    create: Callable[[ApiClient], Awaitable[None]]


VM: Final = Subject(DEMO_VM, "VM", lambda client: create_vm(client, demo_vm()))
SLEEPER: Final = Subject(DEMO_VM, "VM", lambda client: create_vm(client, kept_in_place(postgres_vm(DEMO_VM, 1, 2))))
"""A VM that is always at its minimum: a larger one does not sleep, and may stay large on a busy machine."""
POD: Final = Subject(DEMO_POD, "pod", partial(create_pod_database, policy=POLICY))


@dataclass(slots=True)
class Scenario:
    """One demonstration. ``make_load`` is called once ``subject`` answers; ``watch`` raises if the cluster fails."""

    site: Site
    screen: Screen
    clock: Clock
    seen: Observations
    make_load: Callable[[Json], Awaitable[Press]]
    load_seconds: int
    began: Instant
    watch: Callable[[], Coroutine[object, object, None]]
    subject: Subject = VM
    second: MigrationScenario | None = None
    third: GroupScenario | None = None
    full_node: FullNodeScenario | None = None
    sleep: SleepScenario | None = None
    act: str = "boot"
    tps: float | None = None
    fleet: Fleet = ()
    watcher: Watcher = field(init=False)

    def __post_init__(self) -> None:
        self.watcher = Watcher(self.site, self.subject.name, self.clock, self._sized, self._reasoned)

    async def run(self) -> None:
        """Plays all acts. Raises ``SiteError`` if one cannot be played, and as soon as one of the VMs has ended."""
        ends = watch_for_ends(self.site.client, self.clock)
        acts = [act.watch() for act in (self.second, self.third) if act is not None]
        async with beside(self.watcher.run(), self._draw(), self._look_around(), self.watch(), ends, *acts):
            await self._acts()

    async def _acts(self) -> None:
        await self.subject.create(self.site.client)
        word = self.subject.word
        if not await comes(lambda: self.watcher.snapshot().available, self.clock, _BOOT):
            raise SiteError(f"the {word} did not come up within {_BOOT:g} s: {self.watcher.snapshot().condition}")
        self.say(f"the {word} runs" if self.seen.is_simulated else f"the {word} runs and its database answers")
        if self.sleep is not None:
            self.act = "sleep"
            await self.sleep.play()
            return
        self.say(f"its policy, from its annotation {ANNOTATION_CONFIG}: {POLICY}")
        self.act = "prepare"
        # Making tables is a load, too: the VM may grow meanwhile and has to come to rest again.
        press = await self.make_load(self.watcher.found)
        self.act = "settle"
        await comes(self._is_least, self.clock, _SETTLE)
        await self._wait_for_room()
        await comes(self._stands_still, self.clock, _SETTLE)
        await self._wait_for_room()  # on a busy machine it may have grown again meanwhile
        self.act, self.seen.load_began = "load", self.elapsed()
        await self._load(press, self.load_seconds)
        self.act, self.seen.load_ended = "idle", self.elapsed()
        await comes(self._has_shrunk, self.clock, _SHRINK)
        # Whether it has shrunk or not: what comes later belongs to another act.
        self.seen.shrunk_at = self.elapsed()
        if self.second is not None:
            await self._migrate(self.second, press)
        if self.third is not None:
            await self._groups(self.third)
        if self.full_node is not None:
            await self._fill(self.full_node, press)

    async def _wait_for_room(self) -> None:
        """Returns once the VM is small enough to be seen to grow. Raises ``SiteError``."""
        if not await comes(self._has_room, self.clock, _MAKE_ROOM):
            raise SiteError(f"the {self.subject.word} stays large without load, so it could not be seen to grow")

    async def _migrate(self, second: MigrationScenario, press: Press) -> None:
        self.act = "neighbours"
        self.say("two neighbours start beside the VM, while it is small")
        await second.move_in()
        await second.settle()
        self.act = "full node"
        self.seen.migrations = await second.play(lambda seconds: self._load(press, seconds), _CROWDED)
        self.seen.client_failures = second.client_failures

    async def _fill(self, full_node: FullNodeScenario, press: Press) -> None:
        self.act = "neighbour"
        await full_node.move_in()
        self.act = "full node"
        self.seen.room = await full_node.play(lambda: self._load(press, _CROWDED))

    async def _groups(self, third: GroupScenario) -> None:
        # Without a second act the picture shows the group's rows.
        self.act, self.second = "group", None
        self.say("a group of VMs takes their place: a primary and a read replica")
        self.watcher = third.replica
        await third.settle()
        self.act = "reads"
        await third.play()

    async def _load(self, press: Press, seconds: int) -> None:
        self.say(f"load for {seconds} s")
        outcome = await press(seconds, self._heard)
        self.tps = None
        self.seen.transactions += outcome.transactions
        self.seen.failed += outcome.failed
        # The first problem is the cause; later ones follow from it.
        self.seen.load_problem = self.seen.load_problem or outcome.problem
        done = f": {outcome.transactions} transactions, {outcome.failed} failed" if not self.seen.is_simulated else ""
        self.say(f"the load has ended{done}")

    def elapsed(self) -> Seconds:
        """Seconds since the demonstration began."""
        return Seconds(self.clock.now() - self.began)

    def say(self, what: str) -> None:
        """Something happened that people should see."""
        self.screen.decided(self.elapsed(), what)

    def _sized(self, size: Resources) -> None:
        self.seen.saw(self.elapsed(), size)

    def _reasoned(self, size: Resources, because: str) -> None:
        self.say(f"{size}" + (f": {because}" if because else ""))

    def _heard(self, tps: float) -> None:
        self.tps = tps
        self.seen.tps.append(LoadPoint(round(self.elapsed(), 1), tps))

    def _is_least(self) -> bool:
        return bool(self.seen.sizes) and self.watcher.snapshot().size == self.seen.sizes[0][1]

    def _has_room(self) -> bool:
        snapshot = self.watcher.snapshot()
        # Room for at least a doubling, which nobody takes for noise.
        return snapshot.size is not None and snapshot.most is not None and snapshot.size.cpu * 2 <= snapshot.most.cpu

    def _stands_still(self) -> bool:
        return self._has_room() and self.elapsed() - self.seen.sizes[-1][0] >= _STILL

    def _has_shrunk(self) -> bool:
        began = self.seen.load_began
        start = self.seen.size_at(began) if began is not None else None
        size = self.watcher.snapshot().size
        return start is not None and size is not None and size.within(start)

    async def _draw(self) -> None:
        while True:
            self.screen.show(self.elapsed(), self.act, self.watcher.snapshot(), self.tps, self.fleet)
            await self.clock.sleep(_FRAME)

    async def _look_around(self) -> None:
        while any(act is not None for act in (self.second, self.third, self.full_node, self.sleep)):
            if self.third is None or self.second is not None:
                nodes = items(await self.site.of_scheduler("/nodes") or {}, "nodes")
                moves = [] if self.second is None else self.second.moves
                # The scheduler may not answer for a moment; the last picture stays.
                self.fleet = [fleet_row(node, moves) for node in nodes] or self.fleet
            elif self.third.watcher.vms:
                self.fleet, self.tps = self.third.watcher.rows(), self.third.tps
            await self.clock.sleep(_LOOK_AROUND)
