"""The scenario of a migration: a neighbour moves to another node while clients use it (S4.8, S4.12).

Neighbours start on the node of the demonstration's VM, whose load then pushes the node over its watermark.
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
from protocol.kubernetes.conditions import is_condition_true
from protocol.kubernetes.objects import Json, child, items
from protocol.kubernetes.resources import VIRTUAL_MACHINES
from protocol.messages import ObjectName
from protocol.runtime.clock import Clock, poll_until
from protocol.units import Instant, Seconds
from scripts.autoscale.demonstration.moves import SUCCEEDED, MoveWatch, ObservedMove
from scripts.autoscale.demonstration.pgbench import Outcome
from scripts.autoscale.demonstration.report import MigrationPoint
from scripts.autoscale.demonstration.vm_clients import ClientReport, RunClients
from scripts.autoscale.demonstration.vm_database import MAY_MOVE, create_vm, pinned, postgres_vm
from scripts.autoscale.demonstration.waiting import run_all
from scripts.autoscale.site import Site, SiteError

NEIGHBOURS: Final = (ObjectName("default", "neighbour-1"), ObjectName("default", "neighbour-2"))
_BOOT: Final = Seconds(600.0)
"""For several emulated guests on a busy machine; a VM that ends fails the demonstration immediately."""
_ARRIVE: Final = Seconds(90.0)
_LOADS: Final = 3
_MORE: Final = 15
_OVERLAP: Final = 5
"""Seconds of each additional wave of clients, and of its overlap with the previous one."""


def small_vm(name: ObjectName) -> Json:
    """The object of a neighbour (pure)."""
    return postgres_vm(name, cpus=1, slots=2)


@dataclass(slots=True)
class MigrationScenario:
    """Neighbours and their migrations; run ``watch`` in a task from the start."""

    site: Site
    clock: Clock
    announce: Callable[[str], None]
    clients_of: Callable[[Json], Awaitable[RunClients]]
    watcher: MoveWatch = field(init=False)
    _vms: Informer = field(init=False)
    _clients: dict[ObjectName, RunClients] = field(default_factory=dict)
    client_failures: list[str] = field(default_factory=list)
    """Failures of the neighbours' clients that no migration's figures contain."""

    def __post_init__(self) -> None:
        self.watcher = MoveWatch(self.site.client, self.clock, lambda move: self.announce(move.title))
        self._vms = Informer(self.site.client, VIRTUAL_MACHINES, self.clock)

    @property
    def moves(self) -> list[ObservedMove]:
        """All migrations so far."""
        return self.watcher.moves

    async def watch(self) -> None:
        """Watches until cancelled."""
        await run_all(self.watcher.run(), self._vms.run())

    async def create_neighbours(self) -> None:
        """Creates the neighbours, which must not migrate before they have clients."""
        for name in NEIGHBOURS:
            # A migration without clients would show nothing.
            await create_vm(self.site.client, pinned(small_vm(name)))

    async def settle(self) -> None:
        """Waits until all neighbours are ready, and prepares their clients. Raises ``SiteError``."""
        deadline = Instant(self.clock.now() + _BOOT)
        for name in NEIGHBOURS:
            await self._until(partial(self._is_available, name), deadline, f"{name.name} did not start")
            self._clients[name] = await self.clients_of(self._vms.objects[name])
        # The scheduler moves VMs of unknown load last.
        for name in NEIGHBOURS:
            await self._until(partial(self._is_known, name), deadline, f"the agent of {name.name} reports no metrics")

    async def play(self, load: Callable[[int], Awaitable[None]], seconds: int) -> list[MigrationPoint]:
        """Runs the load for ``seconds``, waits until migrations have ended, and returns their outcomes."""
        reports: dict[ObjectName, asyncio.Task[ClientReport]] = {}
        async with asyncio.TaskGroup() as tasks:
            for name, run_clients in self._clients.items():
                # Longer than the load, for a migration at its very end.
                reports[name] = tasks.create_task(self._keep_clients_running(run_clients, seconds + 5))
                # Allow migrations now that there are clients.
                await self.site.client.merge_patch(VIRTUAL_MACHINES, name, MAY_MOVE)
            tasks.create_task(self._repeat_load(load, seconds))
        # If nothing has moved, the report says so.
        with suppress(SiteError):
            await self._until(self._has_moved, Instant(self.clock.now() + _ARRIVE), "no VM moves")
        client_reports = {name: task.result() for name, task in reports.items()}
        self.client_failures = client_failures(self.moves, client_reports)
        return points(self.moves, client_reports)

    async def _repeat_load(self, load: Callable[[int], Awaitable[None]], seconds: int) -> None:
        """Runs the load, and repeats it if nothing has moved."""
        for _ in range(_LOADS):
            await load(seconds)
            # On a busy machine one load may not push the node over its watermark.
            if self.moves:
                return

    async def _keep_clients_running(self, run_clients: RunClients, seconds: int) -> ClientReport:
        """Runs clients for ``seconds``, and longer until a VM has moved."""
        deadline = Instant(self.clock.now() + seconds + _ARRIVE)
        async with asyncio.TaskGroup() as tasks:
            waves = [tasks.create_task(run_clients(seconds))]
            # Waves overlap, so that there are open sessions at any time.
            await self.clock.sleep(Seconds(float(seconds - _OVERLAP)))
            # On a busy machine a migration may begin long after the load.
            while not await self._has_moved() and self.clock.now() < deadline:
                waves.append(tasks.create_task(run_clients(_MORE)))
                await self.clock.sleep(Seconds(float(_MORE - _OVERLAP)))
        reports = [wave.result() for wave in waves]
        return reduce(add, reports)

    async def _is_known(self, name: ObjectName) -> bool:
        """Return True if the scheduler knows the VM's load."""
        pods = items(await self.site.of_scheduler(f"/explain/{name}") or {}, "pods")
        return any(child(pod, "metrics") for pod in pods)

    async def _is_available(self, name: ObjectName) -> bool:
        return is_condition_true(self._vms.get(name) or {}, "Available")

    async def _has_moved(self) -> bool:
        return bool(self.moves) and not any(move.is_under_way for move in self.moves)

    async def _until(self, condition: Callable[[], Awaitable[bool]], deadline: Instant, otherwise: str) -> None:
        if not await poll_until(condition, self.clock, Seconds(deadline - self.clock.now())):
            raise SiteError(f"{otherwise}; see: kubectl describe neonvm")


def client_failures(moves: Sequence[ObservedMove], reports: Mapping[ObjectName, ClientReport]) -> list[str]:
    """Failures that no migration's figures contain: clients that gave up, and failures in VMs that stayed (pure)."""
    moved = {move.vm for move in moves}
    gave_up = [
        f"clients of {name}: {report.outcome.problem}" for name, report in reports.items() if report.outcome.problem
    ]
    # The figures of migrations contain the failures in VMs that moved.
    stayed = {name: report.outcome.failed for name, report in reports.items() if name not in moved}
    return [*gave_up, *(f"{failed} transactions of {name} failed" for name, failed in stayed.items() if failed)]


def points(moves: Sequence[ObservedMove], reports: Mapping[ObjectName, ClientReport]) -> list[MigrationPoint]:
    """Combines each migration with the report of the VM's clients (pure)."""
    return [_point(move, reports.get(move.vm, ClientReport(Outcome(0, 0, "")))) for move in moves]


def _point(move: ObservedMove, report: ClientReport) -> MigrationPoint:
    stall = None if move.client_span is None else report.longest_stall(*move.client_span)
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
