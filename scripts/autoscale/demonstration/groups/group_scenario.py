"""The third act: a group takes the place of the VMs, and follows the load at its read endpoint there and back."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from protocol.kubernetes.api import ApiRefusedError
from protocol.kubernetes.resources import VIRTUAL_MACHINES, VM_GROUPS
from protocol.runtime.clock import Clock
from protocol.units import Instant, Resources, Seconds
from scripts.autoscale.demonstration.groups.group_object import (
    FIRST,
    GROUP,
    LEAST_CPUS,
    MOST_CPUS,
    MOST_REPLICAS,
    demo_group,
)
from scripts.autoscale.demonstration.groups.group_report import GroupObservations
from scripts.autoscale.demonstration.groups.group_watch import GroupWatch
from scripts.autoscale.demonstration.groups.read_load import ReadLoad
from scripts.autoscale.demonstration.vm_database import make_password
from scripts.autoscale.demonstration.waiting import comes
from scripts.autoscale.demonstration.watcher import Watcher
from scripts.autoscale.site import Site, SiteError

_LEAVE: Final = Seconds(60.0)
_BOOT: Final = Seconds(360.0)
"""A primary and then a replica that copies it, emulated."""
_LONGEST_LOAD: Final = Seconds(300.0)
"""A second replica copies the primary while the first one is loaded."""
_REST: Final = Seconds(90.0)
"""A guest that has just started or was written to comes to rest, unless the machine is busy."""
_TOGETHER: Final = Seconds(10.0)
_ROOM: Final = Seconds(240.0)
_BACK: Final = Seconds(300.0)
"""The window, the delay, a drain and a shrink, with as much again for a busy machine."""


@dataclass(slots=True)
class GroupScenario:
    """Run ``watch`` in a task from the beginning. ``elapsed`` is the time on the demonstration's clock."""

    site: Site
    clock: Clock
    tell: Callable[[str], None]
    elapsed: Callable[[], Seconds]
    read_load: Callable[[], Awaitable[ReadLoad]]
    policy: str
    seen: GroupObservations = field(default_factory=lambda: GroupObservations(FIRST.name))
    tps: float | None = None
    watcher: GroupWatch = field(init=False)
    replica: Watcher = field(init=False)
    """The replica that the group begins with, as the other acts watch their VM."""

    def __post_init__(self) -> None:
        self.replica = Watcher(self.site, FIRST, self.clock, lambda _: None, self._reasoned)
        self.watcher = GroupWatch(self.site.client, GROUP, self.clock, self._changed)

    async def watch(self) -> None:
        """Watches until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.watcher.run())
            tasks.create_task(self.replica.run())

    async def settle(self) -> None:
        """Ends the VMs of the other acts, and waits until the group serves. Raises ``SiteError``."""
        for name in self.watcher.others:
            with suppress(ApiRefusedError):  # it has gone meanwhile
                await self.site.client.delete(VIRTUAL_MACHINES, name)
        await self._until(lambda: not self.watcher.others, _LEAVE, "VMs of the other acts did not end")
        await make_password(self.site.client, demo_group(self.policy))
        await self.site.client.create(VM_GROUPS, GROUP.namespace, demo_group(self.policy))
        await self._until(lambda: self.watcher.is_ready, _BOOT, "the group did not come up")
        self.tell("the group serves: a primary, and a replica that streams from it")

    async def play(self) -> None:
        """Loads the replicas until another one serves, and waits until that has gone again. Raises ``SiteError``."""
        load, observations = await self.read_load(), self.seen
        await load.prepare()
        # A failure to come to rest is no reason to stop: `_has_room` is what the act needs.
        await self._comes(self._is_least, _REST)
        await self._until(
            self._has_room, _ROOM, "the replica stays large without load, so it could not be seen to grow"
        )
        observations.started_at = self._size()
        observations.load_began = self.elapsed()
        self.tell(f"reads at {GROUP.name}-read, as many as it answers")
        outcome = await load.press(self._goes_on(), self._heard)
        # The table shows no rate once the load is over.
        self.tps, observations.load_ended = None, self.elapsed()
        observations.transactions, observations.failed, observations.problem = (
            outcome.transactions,
            outcome.failed,
            outcome.problem,
        )
        observations.said_under_load = self._said(Seconds(observations.load_ended - observations.load_began))
        self.tell("the reads have ended")
        if not await self._comes(self._is_back, _BACK):
            observations.said_at_last = self._said(_BACK)

    def _said(self, waited: Seconds) -> str:
        """The group's own message after a wait."""
        return f"within {waited:.0f} s: {self.watcher.why or 'the group says nothing'}"

    def _goes_on(self) -> Callable[[], bool]:
        """Return True while the load is needed: until two have served for a while, or for too long."""
        began, together = self.clock.now(), list[Instant]()

        def goes_on() -> bool:
            now = self.clock.now()
            # From the first moment at which all serve; later dips do not restart the wait.
            if self.watcher.serving >= MOST_REPLICAS and not together:
                together.append(now)
            return now < began + _LONGEST_LOAD and (not together or now < together[0] + _TOGETHER)

        return goes_on

    def _size(self) -> float:
        return self.seen.points[-1].cpus.get(FIRST.name, 0.0) if self.seen.points else 0.0

    def _is_least(self) -> bool:
        return 0.0 < self._size() <= LEAST_CPUS

    def _has_room(self) -> bool:
        return 0.0 < self._size() < MOST_CPUS

    def _is_back(self) -> bool:
        return len(self.watcher.vms) == 2 and self.watcher.serving == 1 and self._size() <= self.seen.started_at

    def _heard(self, tps: float) -> None:
        self.tps = tps
        self.seen.load.append((round(self.elapsed(), 1), tps))

    def _reasoned(self, size: Resources, because: str) -> None:
        if because:
            self.tell(f"{FIRST.name}: {size}: {because}")

    def _changed(self, serving: int, cpus: Mapping[str, float]) -> None:
        if self.seen.saw(self.elapsed(), serving, cpus) and cpus:
            sizes = ", ".join(f"{name.removeprefix(f'{GROUP.name}-')} {cores:g} vCPU" for name, cores in cpus.items())
            self.tell(f"{serving} {'replica serves' if serving == 1 else 'replicas serve'}; {sizes}")

    async def _until(self, holds: Callable[[], bool], at_most: Seconds, otherwise: str) -> None:
        if not await self._comes(holds, at_most):
            raise SiteError(f"{otherwise} {self._said(at_most)}; see: kubectl describe vmg")

    async def _comes(self, holds: Callable[[], bool], at_most: Seconds) -> bool:
        return await comes(holds, self.clock, at_most)
