"""VMs on two nodes sleep, wake, migrate and are killed under load."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Any, Final

from rich.console import Console

from deploy.local.cluster.folder import ClusterFolder
from deploy.local.cluster.spec import ClusterSpec
from protocol.guest.sleep import sleep_order_patch
from protocol.kubernetes.api import ApiError
from protocol.kubernetes.objects import Json, uid_of
from protocol.kubernetes.resources import MIGRATIONS, VIRTUAL_MACHINES
from protocol.kubernetes.timestamps import micro_timestamp, timestamp
from protocol.messages import ObjectName
from protocol.runtime.background_jobs import background_jobs
from protocol.runtime.clock import SystemClock, wait_until
from protocol.runtime.error_groups import innermost
from protocol.units import Instant, Seconds
from scripts.autoscale.demonstration.migration_scenario import small_vm
from scripts.autoscale.demonstration.moves import SUCCEEDED, MoveWatch
from scripts.autoscale.demonstration.pgbench import DatabaseServer
from scripts.autoscale.demonstration.sleep.qemu_process import qemu_pids
from scripts.autoscale.demonstration.sleep.sleep_scenario import let_requests_follow
from scripts.autoscale.demonstration.vm_database import create_vm, database_of, pinned
from scripts.autoscale.demonstration.waiting import run_all
from scripts.autoscale.migrate import migration_of
from scripts.autoscale.site import Site, SiteError
from scripts.autoscale.sleep.outcomes import OrderOutcome, fell_asleep, woke
from scripts.autoscale.stages import fresh_cluster
from scripts.database_client import DatabaseError, DatabaseSession
from tests.vm.storm.storm_record import StormAction, StormRecord, StormStep, overbooked, steps, storm_counts

NAME: Final = "bench-sleep-storm"
_CLOCK: Final = SystemClock()
_NODE_CPU, _NODE_MEMORY = "2500m", "2Gi"
"""Each node has CPUs for exactly both VMs: if one is reserved twice, the node is over-committed."""
_CLIENTS: Final = 3
_PAUSE: Final = 4.0
"""Average seconds between two transactions of a client."""
_PATIENCE: Final = 180.0
"""Timeout of a transaction in seconds; emulated guests on a busy machine are slow."""
_ORDER, _REFUSALS, _MOVE, _WAKE, _BOOT = Seconds(120.0), Seconds(30.0), Seconds(120.0), Seconds(120.0), Seconds(300.0)
_LOOK, _AGAIN = Seconds(0.2), Seconds(1.0)

_PREPARED: Final = """
create table if not exists storm (n int); create temporary table turns (n int);
prepare put(int) as insert into storm values ($1); prepare count as insert into turns values (1)
"""
_NO_RESERVATIONS: Final = "the scheduler never reported reservations"


@dataclass(slots=True)
class _StormClient:
    """A client with one session; a temporary table and a prepared statement count its transactions."""

    name: str
    server: DatabaseServer
    record: StormRecord
    draw: Random
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    session: DatabaseSession | None = None
    _kills: int = 0
    _turns: int = 0

    async def turn(self) -> bool:
        """Insert a row; open a session if there is none. Return True on success."""
        async with self.lock:
            try:
                async with asyncio.timeout(_PATIENCE):
                    await self._add_row(self.session or await self._open())
            except (DatabaseError, OSError) as error:
                self.record.failed(
                    f"{timestamp(_CLOCK.wall())} {self.name}, after {self._turns} turns: {error!r}", self._kills
                )
                self.close()
                return False
            return True

    async def _open(self) -> DatabaseSession:
        kills = self.record.kills
        # While the VM is down, the last kill explains a failure; after the session is open, only a later kill does.
        self._kills, self._turns = kills - self.record.is_down, 0
        self.session = await DatabaseSession.open(self.server.host, self.server.port, self.server.password)
        self._kills = kills
        self.record.opened(kills)
        await self.session.query(_PREPARED)
        return self.session

    async def _add_row(self, session: DatabaseSession) -> None:
        self.record.rows = row = self.record.rows + 1
        await session.query(f"begin; execute put({row})")
        # An open transaction prevents sleep.
        await asyncio.sleep(max(0.0, self.draw.uniform(-4 * _PAUSE, _PAUSE)))
        turns = await session.ask("commit; execute count; select count(*) from turns")
        self.record.confirmed.add(row)
        self._turns += 1
        if turns != str(self._turns):
            raise DatabaseError(f"its temporary table has {turns} rows")

    def close(self) -> None:
        """Close the session; the next turn opens a new one."""
        if self.session is not None:
            self.session.close()
        self.session = None


@dataclass(slots=True)
class _StormVm:
    """One VM, and the actions on it. The first client checks it after each action, the others are the load."""

    site: Site
    moves: MoveWatch
    seed: str
    tell: Callable[[str], None]
    name: ObjectName
    record: StormRecord
    clients: list[_StormClient] = field(default_factory=list)
    _may_work: asyncio.Event = field(default_factory=asyncio.Event)

    async def begin(self, stack: AsyncExitStack) -> None:
        """Create the VM and wait until it is running. Raises ``SiteError``."""
        await create_vm(self.site.client, pinned(small_vm(self.name)))
        if not (up := await self._until(woke, _BOOT)).is_done:
            raise SiteError(f"{self.name.name} did not come up: {up.line}")
        server = await stack.enter_async_context(database_of(self.site, await self._get()))
        for number in range(_CLIENTS):
            draw = Random(f"{self.seed} {number}")
            client = _StormClient(f"client {number}", server, self.record, draw)
            stack.callback(client.close)
            self.clients.append(client)
        await self._visit()
        self._may_work.set()

    async def work(self, client: _StormClient) -> None:
        """Run a client's transactions until cancelled."""
        while True:
            await _CLOCK.sleep(Seconds(client.draw.expovariate(1 / _PAUSE)))
            await self._may_work.wait()
            await client.turn()

    async def run_steps(self, until: Instant) -> None:
        """Run actions until ``until``, and check the rows at the end."""
        for step in steps(self.seed):
            if _CLOCK.now() >= until:
                break
            await _CLOCK.sleep(Seconds(step.pause))
            if step.quiet:
                await self._pause_clients()
            began = _CLOCK.now()
            try:
                outcome = await self._act(step)
            except* ApiError as errors:
                # A busy API server may time out; only the clients' view counts.
                outcome = OrderOutcome(str(innermost(errors)), is_done=False)
            self._may_work.set()
            await self._visit()
            self.clients[0].close()
            took = _CLOCK.now() - began
            self.record.ends.append((step.action, took, outcome.is_done))
            self.tell(f"{timestamp(_CLOCK.wall())} {self.name.name}, {took:.1f} s, {step.action}: {outcome.line}")
        await self._pause_clients()
        if await self._visit() and (session := self.clients[0].session):
            rows = await session.query("select n, count(*) from storm group by n")
            self.record.judge_rows({int(row): int(count) for row, count in rows})

    async def _pause_clients(self) -> None:
        """Pause all clients, and wait for their current transactions."""
        self._may_work.clear()
        for client in self.clients:
            async with client.lock:
                pass

    async def _visit(self) -> bool:
        """Wait until a transaction of the first client succeeds; record a fault and return False after a timeout."""
        until = _CLOCK.now() + _BOOT
        while not await self.clients[0].turn():
            if _CLOCK.now() >= until:
                self.record.faults.append("the database does not answer")
                return False
            await _CLOCK.sleep(_AGAIN)
        return True

    async def _act(self, step: StormStep) -> OrderOutcome:
        acts: dict[StormAction, tuple[Callable[[], Coroutine[Any, Any, OrderOutcome]], ...]] = {
            StormAction.MIGRATION: (self._migrate,),
            StormAction.ORDER_MOVING: (self._migrate, self._order),
            StormAction.KILL: (self._kill,),
            StormAction.KILL_ORDERED: (self._order, self._kill),
            StormAction.KILL_MOVING: (self._migrate, self._kill),
        }
        if step.action not in acts:
            asleep = await self._fall_asleep()
            return await self._wake(step.action, asleep) if asleep.is_done else asleep
        async with asyncio.TaskGroup() as tasks:
            running: list[asyncio.Task[OrderOutcome]] = []
            for act in acts[step.action]:
                await _CLOCK.sleep(Seconds(step.moment if running else 0.0))
                running.append(tasks.create_task(act()))
        outcomes = [task.result() for task in running]
        return OrderOutcome("; ".join(outcome.line for outcome in outcomes), outcomes[-1].is_done)

    async def _fall_asleep(self) -> OrderOutcome:
        until = _CLOCK.now() + _REFUSALS
        while not (outcome := await self._order()).is_done and _CLOCK.now() < until:
            await _CLOCK.sleep(_AGAIN)
        return outcome

    async def _wake(self, action: StormAction, asleep: OrderOutcome) -> OrderOutcome:
        wakers: dict[StormAction, Callable[[], Coroutine[Any, Any, object]]] = {
            StormAction.IDLE_SESSION: self.clients[1].turn,
            StormAction.NEW_SESSION: self.clients[0].turn,
            StormAction.ORDER_REMOVED: partial(self._patch, None),
            StormAction.MIGRATION_ASLEEP: self._migrate,
        }
        async with asyncio.TaskGroup() as tasks:
            waking = [
                tasks.create_task(waker()) for name, waker in wakers.items() if action in {name, StormAction.AT_ONCE}
            ]
        outcomes = [result for task in waking if isinstance(result := task.result(), OrderOutcome)]
        outcomes.append(await self._until(woke, _WAKE))
        lines = "; ".join(outcome.line for outcome in (asleep, *outcomes))
        return OrderOutcome(lines, all(outcome.is_done for outcome in outcomes))

    async def _order(self) -> OrderOutcome:
        order = micro_timestamp(_CLOCK.wall())
        await self._patch(order)
        return await self._until(lambda vm, took: fell_asleep(vm, order, took), _ORDER)

    async def _patch(self, order: str | None) -> None:
        await self.site.client.merge_patch(VIRTUAL_MACHINES, self.name, sleep_order_patch(order))

    async def _migrate(self) -> OrderOutcome:
        migration = migration_of(self.name, _MOVE)
        uid = uid_of(await self.site.client.create(MIGRATIONS, self.name.namespace, migration))
        moves = self.moves
        limit = Seconds(_MOVE + _REFUSALS)
        await wait_until(lambda: (move := moves.by_uid(uid)) is not None and not move.is_under_way, _CLOCK, limit)
        move = moves.by_uid(uid)
        return OrderOutcome(move.title if move else "no migration", move is not None and move.phase == SUCCEEDED)

    async def _kill(self) -> OrderOutcome:
        pids = await asyncio.to_thread(qemu_pids, ClusterFolder.of(NAME).root, self.name)
        killed = 0
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
                killed += 1
        if killed:
            self.record.killed()
        return OrderOutcome(f"{killed} QEMU killed", bool(killed))

    async def _until(self, end: Callable[[Json, Seconds], OrderOutcome | None], at_most: Seconds) -> OrderOutcome:
        began = _CLOCK.now()
        while (took := Seconds(_CLOCK.now() - began)) < at_most:
            if (outcome := end(await self._get(), took)) is not None:
                return outcome
            await _CLOCK.sleep(_LOOK)
        return OrderOutcome(f"no end within {at_most:g} s", is_done=False)

    async def _get(self) -> Json:
        return await self.site.client.get(VIRTUAL_MACHINES, self.name)


async def _watch_reservations(site: Site, over: set[str]) -> None:
    while True:
        # A busy scheduler may time out.
        if nodes := await site.of_scheduler("/nodes"):
            over.discard(_NO_RESERVATIONS)
            over |= overbooked(nodes)
        await _CLOCK.sleep(_AGAIN)


async def sleep_storm(seconds: int, seed: str, console: Console) -> list[str]:
    """Run the storm; return its faults: lost or duplicated rows, sessions that broke without a kill, over-committed
    nodes, and VMs that do not answer at the end.
    """
    tell = partial(console.print, markup=False, highlight=False, soft_wrap=True)
    tell(f"a storm of {seconds} s; AUTOSCALE_STORM_SEED={seed} repeats its actions")
    spec = ClusterSpec(nodes=2, node_cpu=_NODE_CPU, node_memory=_NODE_MEMORY)
    records, over = [StormRecord("storm-1"), StormRecord("storm-2")], {_NO_RESERVATIONS}
    async with fresh_cluster(NAME, spec, console) as site, AsyncExitStack() as stack:
        let_requests_follow(ClusterFolder.of(NAME))
        moves = MoveWatch(site.client, _CLOCK, lambda _: None)
        vms = [
            _StormVm(site, moves, f"{seed} {record.vm}", tell, ObjectName("default", record.vm), record)
            for record in records
        ]
        try:
            async with background_jobs(moves.run(), _watch_reservations(site, over)):
                await run_all(*(vm.begin(stack) for vm in vms))
                until = Instant(_CLOCK.now() + seconds)
                async with background_jobs(*(vm.work(client) for vm in vms for client in vm.clients[1:])):
                    await run_all(*(vm.run_steps(until) for vm in vms))
        finally:
            # Also after Ctrl-C.
            faults = [*over, *(f"{record.vm}: {fault}" for record in records for fault in record.faults)]
            tell("\n".join([*storm_counts(records), *(f"fault: {fault}" for fault in faults)]))
    return faults
