"""The demonstration from start to end, each step with its own timeout."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from deploy.kube.client import ApiClient
from protocol.kubernetes.objects import Json, child, items
from protocol.messages import ObjectName
from protocol.names import ANNOTATION_CONFIG
from protocol.runtime.background_jobs import background_jobs
from protocol.runtime.clock import Clock, wait_until
from protocol.units import Instant, Resources, Seconds
from scripts.autoscale.demonstration.fleet import fleet_row
from scripts.autoscale.demonstration.group_scenario import GroupScenario
from scripts.autoscale.demonstration.loads import Load
from scripts.autoscale.demonstration.migration_scenario import MigrationScenario
from scripts.autoscale.demonstration.pods.full_node import FullNodeScenario
from scripts.autoscale.demonstration.pods.pod_database import DEMO_POD, create_pod_database
from scripts.autoscale.demonstration.report import LoadPoint, Observations
from scripts.autoscale.demonstration.screen import Fleet, Screen
from scripts.autoscale.demonstration.sleep.sleep_scenario import SleepScenario
from scripts.autoscale.demonstration.vm_database import create_vm, pinned, postgres_vm
from scripts.autoscale.demonstration.waiting import watch_for_ends
from scripts.autoscale.demonstration.watcher import Watcher
from scripts.autoscale.site import Site, SiteError

DEMO_VM: Final = ObjectName("default", "demo")
POLICY: Final = (
    '{"smoothing": {"cpu": [{"hold": {"window": "20s"}}], "memory": [{"hold": {"window": "20s"}}]}, '
    '"memory": {"cache": {"watch": "5s"}}}'
)
"""Shrinks within seconds instead of minutes; see docs/policies.md."""
_BOOT: Final = Seconds(600.0)
"""For an emulated guest on a busy machine; a VM that ends fails the demonstration immediately."""
_SETTLE: Final = Seconds(20.0)
_STILL: Final = 6.0
"""Seconds without a change of size after which the guest counts as settled."""
_MAKE_ROOM: Final = Seconds(60.0)
_SHRINK: Final = Seconds(90.0)
_FRAME: Final = Seconds(0.25)
_FLEET_INTERVAL: Final = Seconds(0.5)
_SECOND_LOAD: Final = 30
"""Seconds of load for a migration, and on a full node."""


def demo_vm() -> Json:
    """The demonstration's VM, which may grow but not migrate (pure)."""
    vm = postgres_vm(DEMO_VM, cpus=4, slots=8)
    return pinned({**vm, "metadata": {**child(vm, "metadata"), "annotations": {ANNOTATION_CONFIG: POLICY}}})


@dataclass(frozen=True, slots=True)
class DemoDatabase:
    """The demonstration's database, VM or pod, and how to create it."""

    name: ObjectName
    word: str
    create: Callable[[ApiClient], Awaitable[None]]


VM: Final = DemoDatabase(DEMO_VM, "VM", lambda client: create_vm(client, demo_vm()))
SLEEPER: Final = DemoDatabase(DEMO_VM, "VM", lambda client: create_vm(client, pinned(postgres_vm(DEMO_VM, 1, 2))))
"""A VM that stays at its minimum: a larger one does not sleep, and may stay large on a busy machine."""
POD: Final = DemoDatabase(DEMO_POD, "pod", partial(create_pod_database, policy=POLICY))


@dataclass(slots=True)
class Scenario:
    """A demonstration. ``make_load`` is called when ``database`` is available; ``watch`` raises if a cluster fails."""

    site: Site
    screen: Screen
    clock: Clock
    observed: Observations
    make_load: Callable[[Json], Awaitable[Load]]
    load_seconds: int
    began: Instant
    watch: Callable[[], Coroutine[object, object, None]]
    database: DemoDatabase = VM
    migration: MigrationScenario | None = None
    group: GroupScenario | None = None
    full_node: FullNodeScenario | None = None
    sleep: SleepScenario | None = None
    step: str = "boot"
    tps: float | None = None
    fleet: Fleet = ()
    watcher: Watcher = field(init=False)

    def __post_init__(self) -> None:
        self.watcher = Watcher(self.site, self.database.name, self.clock, self._sized, self._reasoned)

    async def run(self) -> None:
        """Plays the demonstration. Raises ``SiteError`` if a step fails, and as soon as a VM ends."""
        ends = watch_for_ends(self.site.client, self.clock)
        watches = [part.watch() for part in (self.migration, self.group) if part is not None]
        async with background_jobs(self.watcher.run(), self._draw(), self._read_fleet(), self.watch(), ends, *watches):
            await self._play()

    async def _play(self) -> None:
        await self.database.create(self.site.client)
        word = self.database.word
        if not await wait_until(lambda: self.watcher.snapshot().available, self.clock, _BOOT):
            raise SiteError(f"the {word} did not start within {_BOOT:g} s: {self.watcher.snapshot().condition}")
        self.announce(
            f"the {word} is running" if self.observed.is_simulated else f"the {word} and its database are running"
        )
        if self.sleep is not None:
            self.step = "sleep"
            await self.sleep.play()
            return
        self.announce(f"its policy, from its annotation {ANNOTATION_CONFIG}: {POLICY}")
        self.step = "prepare"
        # Creating tables is a load, too: the VM may grow meanwhile and has to settle again.
        load = await self.make_load(self.watcher.database)
        self.step = "settle"
        await wait_until(self._has_first_size, self.clock, _SETTLE)
        await self._wait_for_room()
        await wait_until(self._is_settled, self.clock, _SETTLE)
        await self._wait_for_room()  # on a busy machine it may have grown meanwhile
        self.step, self.observed.load_began = "load", self.elapsed()
        await self._load(load, self.load_seconds)
        self.step, self.observed.load_ended = "idle", self.elapsed()
        await wait_until(self._has_shrunk, self.clock, _SHRINK)
        # Even if it has not shrunk: later sizes belong to another scenario.
        self.observed.shrunk_at = self.elapsed()
        if self.migration is not None:
            await self._migrate(self.migration, load)
        if self.group is not None:
            await self._groups(self.group)
        if self.full_node is not None:
            await self._fill(self.full_node, load)

    async def _wait_for_room(self) -> None:
        """Waits until the database is small enough to grow visibly. Raises ``SiteError``."""
        if not await wait_until(self._has_room, self.clock, _MAKE_ROOM):
            raise SiteError(f"the {self.database.word} stays large without load, which leaves it no room to grow")

    async def _migrate(self, migration: MigrationScenario, load: Load) -> None:
        self.step = "neighbours"
        self.announce("two neighbours start on the VM's node, while it is small")
        await migration.create_neighbours()
        await migration.settle()
        self.step = "full node"
        self.observed.migrations = await migration.play(lambda seconds: self._load(load, seconds), _SECOND_LOAD)
        self.observed.client_failures = migration.client_failures

    async def _fill(self, full_node: FullNodeScenario, load: Load) -> None:
        self.step = "neighbour"
        await full_node.fill_node()
        self.step = "full node"
        self.observed.room = await full_node.play(lambda: self._load(load, _SECOND_LOAD))

    async def _groups(self, group: GroupScenario) -> None:
        # Without the migration, the screen shows the group's rows.
        self.step, self.migration = "group", None
        self.announce("a group of VMs replaces them: a primary and a read replica")
        self.watcher = group.replica
        await group.settle()
        self.step = "reads"
        await group.play()

    async def _load(self, load: Load, seconds: int) -> None:
        self.announce(f"load for {seconds} s")
        outcome = await load(seconds, self._on_tps)
        self.tps = None
        self.observed.transactions += outcome.transactions
        self.observed.failed += outcome.failed
        # The first problem is the cause of later ones.
        self.observed.load_problem = self.observed.load_problem or outcome.problem
        done = (
            f": {outcome.transactions} transactions, {outcome.failed} failed" if not self.observed.is_simulated else ""
        )
        self.announce(f"the load has ended{done}")

    def elapsed(self) -> Seconds:
        """Seconds since the demonstration began."""
        return Seconds(self.clock.now() - self.began)

    def announce(self, what: str) -> None:
        """Shows an event on the screen."""
        self.screen.add_event(self.elapsed(), what)

    def _sized(self, size: Resources) -> None:
        self.observed.record(self.elapsed(), size)

    def _reasoned(self, size: Resources, because: str) -> None:
        self.announce(f"{size}" + (f": {because}" if because else ""))

    def _on_tps(self, tps: float) -> None:
        self.tps = tps
        self.observed.tps.append(LoadPoint(round(self.elapsed(), 1), tps))

    def _has_first_size(self) -> bool:
        return bool(self.observed.sizes) and self.watcher.snapshot().size == self.observed.sizes[0][1]

    def _has_room(self) -> bool:
        snapshot = self.watcher.snapshot()
        # Room to double, which is clearly not noise.
        return (
            snapshot.size is not None
            and snapshot.max_size is not None
            and snapshot.size.cpu * 2 <= snapshot.max_size.cpu
        )

    def _is_settled(self) -> bool:
        return self._has_room() and self.elapsed() - self.observed.sizes[-1][0] >= _STILL

    def _has_shrunk(self) -> bool:
        began = self.observed.load_began
        start = self.observed.size_at(began) if began is not None else None
        size = self.watcher.snapshot().size
        return start is not None and size is not None and size.within(start)

    async def _draw(self) -> None:
        while True:
            self.screen.show(self.elapsed(), self.step, self.watcher.snapshot(), self.tps, self.fleet)
            await self.clock.sleep(_FRAME)

    async def _read_fleet(self) -> None:
        while any(part is not None for part in (self.migration, self.group, self.full_node, self.sleep)):
            if self.group is None or self.migration is not None:
                nodes = items(await self.site.of_scheduler("/nodes") or {}, "nodes")
                moves = [] if self.migration is None else self.migration.moves
                # If the scheduler does not respond, the last rows stay.
                self.fleet = [fleet_row(node, moves) for node in nodes] or self.fleet
            elif self.group.watcher.vms:
                self.fleet, self.tps = self.group.watcher.rows(), self.group.tps
            await self.clock.sleep(_FLEET_INTERVAL)
