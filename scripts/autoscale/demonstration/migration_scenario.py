"""The second part of the demonstration: a neighbour moves to another node while its clients use it (S4.8, S4.12).

Neighbours start beside the VM that is shown; its load then pushes their node over the watermark.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial, reduce
from operator import add
from typing import Final

from deploy.kube.informer import Informer
from protocol.kubernetes.conditions import holds
from protocol.kubernetes.objects import Json, child, items
from protocol.kubernetes.resources import VIRTUAL_MACHINES
from protocol.messages import ObjectName
from protocol.runtime.clock import Clock
from protocol.units import Instant, Seconds
from scripts.autoscale.demonstration.moves import SUCCEEDED, MoveWatch, ObservedMove
from scripts.autoscale.demonstration.pgbench import Outcome
from scripts.autoscale.demonstration.report import MigrationPoint
from scripts.autoscale.demonstration.vm_clients import ClientReport, Live
from scripts.autoscale.demonstration.vm_database import MAY_MOVE, create_vm, kept_in_place, postgres_vm
from scripts.autoscale.demonstration.waiting import answers, together
from scripts.autoscale.site import Site, SiteError

NEIGHBOURS: Final = (ObjectName("default", "neighbour-1"), ObjectName("default", "neighbour-2"))
_BOOT: Final = Seconds(600.0)
"""Several emulated guests on a busy machine; one that has ended is not waited for."""
_ARRIVE: Final = Seconds(90.0)
_LOADS: Final = 3
_MORE: Final = 15
_OVERLAP: Final = 5
"""Seconds of each further wave of clients, and of its overlap with the one before."""


def small_vm(name: ObjectName) -> Json:
    """A neighbour (pure)."""
    return postgres_vm(name, cpus=1, slots=2)


@dataclass(slots=True)
class MigrationScenario:
    """Neighbours and their migrations. Run ``watch`` in a task from the beginning."""

    site: Site
    clock: Clock
    tell: Callable[[str], None]
    clients_of: Callable[[Json], Awaitable[Live]]
    watcher: MoveWatch = field(init=False)
    _vms: Informer = field(init=False)
    _clients: dict[ObjectName, Live] = field(default_factory=dict)
    client_failures: list[str] = field(default_factory=list)
    """Failures of the neighbours' clients that are in no migration's figures."""

    def __post_init__(self) -> None:
        self.watcher = MoveWatch(self.site.client, self.clock, lambda move: self.tell(move.title))
        self._vms = Informer(self.site.client, VIRTUAL_MACHINES, self.clock)

    @property
    def moves(self) -> list[ObservedMove]:
        """Every migration so far."""
        return self.watcher.moves

    async def watch(self) -> None:
        """Watches until cancelled."""
        await together(self.watcher.run(), self._vms.run())

    async def move_in(self) -> None:
        """Makes the neighbours; they boot by themselves, and do not move before their clients are there."""
        for name in NEIGHBOURS:
            # Their annotation keeps them in place: a move without clients would prove nothing.
            await create_vm(self.site.client, kept_in_place(small_vm(name)))

    async def settle(self) -> None:
        """Waits until all neighbours answer, and makes what their clients need. Raises ``SiteError``."""
        deadline = Instant(self.clock.now() + _BOOT)
        for name in NEIGHBOURS:
            await self._until(partial(self._answers, name), deadline, f"{name.name} did not come up")
            self._clients[name] = await self.clients_of(self._vms.objects[name])
        # The scheduler moves the least loaded VM first, and those of unknown load last.
        for name in NEIGHBOURS:
            await self._until(partial(self._is_known, name), deadline, f"the agent of {name.name} says nothing")

    async def play(self, load: Callable[[int], Awaitable[None]], seconds: int) -> list[MigrationPoint]:
        """Puts the load on for ``seconds``, lets migrations come to their end, and says what became of each."""
        reports: dict[ObjectName, asyncio.Task[ClientReport]] = {}
        async with asyncio.TaskGroup() as tasks:
            for name, live in self._clients.items():
                # Clients outlive the load by some seconds, so that a move at its very end is still noticed.
                reports[name] = tasks.create_task(self._live(live, seconds + 5))
                # The VM may move only once its clients are there to notice.
                await self.site.client.merge_patch(VIRTUAL_MACHINES, name, MAY_MOVE)
            tasks.create_task(self._press(load, seconds))
        # That nothing has moved is a finding for the report, and not an error.
        with suppress(SiteError):
            await self._until(self._has_moved, Instant(self.clock.now() + _ARRIVE), "no VM moves")
        client_reports = {name: task.result() for name, task in reports.items()}
        self.client_failures = client_failures(self.moves, client_reports)
        return points(self.moves, client_reports)

    async def _press(self, load: Callable[[int], Awaitable[None]], seconds: int) -> None:
        """Puts the load on, and again if nothing has moved when it ends."""
        for _ in range(_LOADS):
            await load(seconds)
            # A busy machine may leave too little of the load to push the node over its watermark.
            if self.moves:
                return

    async def _live(self, live: Live, seconds: int) -> ClientReport:
        """The clients use their VM for ``seconds``, and on until a VM has moved."""
        deadline = Instant(self.clock.now() + seconds + _ARRIVE)
        async with asyncio.TaskGroup() as tasks:
            waves = [tasks.create_task(live(seconds))]
            # Waves overlap, so that at every moment some clients are in the middle of a session.
            await self.clock.sleep(Seconds(float(seconds - _OVERLAP)))
            # On a busy machine a move may begin long after its load.
            while not await self._has_moved() and self.clock.now() < deadline:
                waves.append(tasks.create_task(live(_MORE)))
                await self.clock.sleep(Seconds(float(_MORE - _OVERLAP)))
        reports = [wave.result() for wave in waves]
        return reduce(add, reports)

    async def _is_known(self, name: ObjectName) -> bool:
        """Return True if the scheduler knows how loaded the VM is."""
        pods = items(await self.site.of_scheduler(f"/explain/{name}") or {}, "pods")
        return any(child(pod, "metrics") for pod in pods)

    async def _answers(self, name: ObjectName) -> bool:
        return holds(self._vms.get(name) or {}, "Available")

    async def _has_moved(self) -> bool:
        return bool(self.moves) and not any(move.is_under_way for move in self.moves)

    async def _until(self, holds: Callable[[], Awaitable[bool]], deadline: Instant, otherwise: str) -> None:
        if not await answers(holds, self.clock, Seconds(deadline - self.clock.now())):
            raise SiteError(f"{otherwise}; see: kubectl describe neonvm")


def client_failures(moves: Sequence[ObservedMove], reports: Mapping[ObjectName, ClientReport]) -> list[str]:
    """Failures outside of migrations' figures: clients that gave up, and failures in VMs that stayed (pure)."""
    moved = {move.vm for move in moves}
    gave_up = [
        f"clients of {name}: {report.outcome.problem}" for name, report in reports.items() if report.outcome.problem
    ]
    # Failures in VMs that moved are in the figures of their migrations.
    stayed = {name: report.outcome.failed for name, report in reports.items() if name not in moved}
    return [*gave_up, *(f"{failed} transactions of {name} failed" for name, failed in stayed.items() if failed)]


def points(moves: Sequence[ObservedMove], reports: Mapping[ObjectName, ClientReport]) -> list[MigrationPoint]:
    """Each migration with what the VM's clients noticed of it (pure)."""
    return [_point(move, reports.get(move.vm, ClientReport(Outcome(0, 0, "")))) for move in moves]


def _point(move: ObservedMove, report: ClientReport) -> MigrationPoint:
    stall = None if move.felt is None else report.longest_stall(*move.felt)
    return MigrationPoint(
        vm=str(move.vm),
        source=move.source,
        target=move.target,
        succeeded=move.phase == SUCCEEDED,
        reason=move.reason,
        total_ms=move.total_ms,
        downtime_ms=move.downtime_ms,
        longest_stall_ms=None if stall is None else round(stall * 1000, 1),
        failed_transactions=report.outcome.failed,
    )
