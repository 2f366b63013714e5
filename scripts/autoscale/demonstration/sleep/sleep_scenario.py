"""The demonstration of sleep: an idle VM sleeps twice, and first an open session, then a new one wakes it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final

import msgspec

from deploy.local.cluster.folder import ClusterFolder
from protocol.guest.sleep import ASLEEP, SleepReport, SleepState, sleep_order_patch, sleep_report
from protocol.kubernetes.objects import Json, annotations_of, items, text
from protocol.kubernetes.resources import VIRTUAL_MACHINES
from protocol.kubernetes.timestamps import micro_timestamp
from protocol.names import ANNOTATION_PERMIT
from protocol.runtime.clock import Clock, poll_until
from protocol.units import Resources, Seconds
from scripts.autoscale.demonstration.pgbench import DatabaseServer
from scripts.autoscale.demonstration.sleep.sleep_points import KEPT, TABLE_HAS, SleepPoint, answer_line, asleep_line
from scripts.autoscale.demonstration.vm_database import database_of
from scripts.autoscale.demonstration.watcher import Watcher, sizes_of
from scripts.autoscale.site import Site, SiteError
from scripts.database_client import DatabaseError, DatabaseSession

_ORDERED: Final = Seconds(60.0)
_REFUSED: Final = Seconds(120.0)
"""After booting, an autovacuum may keep a guest from sleeping."""
_RETRY: Final = Seconds(3.0)
_SCHEDULER: Final = Seconds(10.0)
_FREED: Final = Seconds(20.0)
"""Timeout until the agent has released the permit and the scheduler has stored that."""
_ANSWER: Final = 60.0
_AWAKE: Final = Seconds(60.0)
_ENDS: Final = frozenset({SleepState.AWAKE, SleepState.RESTARTED})


@dataclass(frozen=True, slots=True)
class _State:
    """The node's reservation, the VM's size and permit in the API, and the memory of its QEMU."""

    reserved: Resources
    size: Resources | None
    permit: str
    qemu_bytes: int | None


@dataclass(slots=True)
class SleepScenario:
    """``watcher`` watches the VM; ``qemu_memory`` returns the bytes of its processes, None if there are none."""

    site: Site
    clock: Clock
    announce: Callable[[str], None]
    watcher: Watcher
    qemu_memory: Callable[[], int | None]
    points: list[SleepPoint] = field(default_factory=list)

    async def play(self) -> None:
        """Adds a point per sleep. Raises ``SiteError`` if the VM does not sleep, or its database does not respond."""
        try:
            async with database_of(self.site, self.watcher.database) as server:
                session = await DatabaseSession.open(server.host, server.port, server.password)
                try:
                    await self._play(session, server)
                finally:
                    session.close()
        except TimeoutError:
            raise SiteError(f"the database did not respond within {_ANSWER:g} s") from None
        except (DatabaseError, OSError) as error:
            raise SiteError(f"a database session failed: {error}") from error

    async def _play(self, session: DatabaseSession, server: DatabaseServer) -> None:
        await session.ask(f"create temporary table kept as select {TABLE_HAS} as n")
        self.announce("a session has created a temporary table, and is now idle")
        await self._sleep("the idle session", lambda: _table(session), session)
        await self._sleep("a new session", lambda: _connect(server), session)

    async def _sleep(self, client: str, query: Callable[[], Awaitable[object]], session: DatabaseSession) -> None:
        """One sleep, which the ``query`` of ``client`` ends; ``session`` reads its table afterwards."""
        before = await self._state()
        # Not the watcher's size: it may not have seen the VM wake.
        if (size := before.size) is None:
            raise SiteError("the VM has no size before it is ordered to sleep")
        report, duration = await self._fall_asleep()
        asleep = self._point(client, size, before, await self._freed(before, size), report, duration)
        self.announce(asleep_line(asleep))
        self.announce(f"{client} sends a query")
        async with asyncio.timeout(_ANSWER):
            began = self.clock.now()
            await query()
            waited = Seconds(self.clock.now() - began)
            table = await _table(session)
        awake = sleep_report(await self._until(lambda vm: sleep_report(vm).state in _ENDS, _AWAKE))
        point = msgspec.structs.replace(
            asleep,
            answer_seconds=round(waited, 3),
            wake_seconds=round(awake.seconds, 3),
            state=awake.state or "",
            table=table,
        )
        self.points.append(point)
        self.announce(f"{answer_line(point)}: {awake.message}")

    def _point(  # noqa: PLR0913, PLR0917 - the observations of a sleep
        self, client: str, size: Resources, before: _State, now: _State, report: SleepReport, duration: Seconds
    ) -> SleepPoint:
        freed = before.reserved.minus_or_zero(now.reserved)
        return SleepPoint(
            woken_by=client,
            node=self.watcher.snapshot().node,
            asleep_seconds=round(duration, 2),
            sessions=report.sessions,
            saved_bytes=report.saved,
            qemu_bytes=before.qemu_bytes,
            qemu_ended=now.qemu_bytes is None,
            size_cpu=size.cpu.as_cores,
            size_bytes=size.mem.value,
            freed_cpu=freed.cpu.as_cores,
            freed_bytes=freed.mem.value,
            permit=now.permit,
        )

    async def _fall_asleep(self) -> tuple[SleepReport, Seconds]:
        """Orders the VM to sleep until it does. Raises ``SiteError`` if it refuses for too long."""
        deadline = self.clock.now() + _REFUSED
        while True:
            began = self.clock.now()
            vm, why = await self._order()
            if text(vm, "status", "phase") == ASLEEP:
                return sleep_report(vm), Seconds(self.clock.now() - began)
            if self.clock.now() >= deadline:
                raise SiteError(why)
            self.announce(why)
            await self.clock.sleep(_RETRY)

    async def _order(self) -> tuple[Json, str]:
        """Orders the VM to sleep; returns the VM afterwards, and why it does not sleep."""
        order = micro_timestamp(self.clock.wall())
        await self.site.client.merge_patch(VIRTUAL_MACHINES, self.watcher.vm, sleep_order_patch(order))
        vm = await self._until(lambda vm: _is_answered(vm, order), _ORDERED)
        why = sleep_report(vm).message if _is_answered(vm, order) else f"no response to the order in {_ORDERED:g} s"
        return vm, f"the VM does not sleep: {why}"

    async def _freed(self, before: _State, size: Resources) -> _State:
        """The state once QEMU has ended and the node's reservation is reduced by ``size``, or after a timeout."""
        now = before

        async def is_freed() -> bool:
            nonlocal now
            now = await self._state()
            return now.qemu_bytes is None and (now.reserved + size).within(before.reserved + KEPT)

        await poll_until(is_freed, self.clock, _FREED)
        return now

    async def _until(self, condition: Callable[[Json], bool], at_most: Seconds) -> Json:
        """The VM once ``condition`` is true for it, or after ``at_most``."""
        vm: Json = {}

        async def poll() -> bool:
            nonlocal vm
            # Not the watcher's object, which may be older than the order.
            vm = await self.site.client.get(VIRTUAL_MACHINES, self.watcher.vm)
            return condition(vm)

        await poll_until(poll, self.clock, at_most)
        return vm

    async def _state(self) -> _State:
        """Raises ``SiteError`` if the scheduler does not respond."""
        node, accounts = self.watcher.snapshot().node, list[Json]()

        async def is_listed() -> bool:
            nodes = items(await self.site.of_scheduler("/nodes") or {}, "nodes")
            accounts.extend(account for account in nodes if text(account, "name") == node)
            return bool(accounts)

        # On a busy machine the scheduler may be slow to answer.
        if not await poll_until(is_listed, self.clock, _SCHEDULER):
            raise SiteError(f"the scheduler does not report the reservations on {node}")
        reserved = Resources.parse(text(accounts[0], "reserved", "cpu"), text(accounts[0], "reserved", "mem"))
        vm = await self.site.client.get(VIRTUAL_MACHINES, self.watcher.vm)
        qemu_bytes = await asyncio.to_thread(self.qemu_memory)
        return _State(reserved, sizes_of(vm)[0], annotations_of(vm).get(ANNOTATION_PERMIT, ""), qemu_bytes)


def let_requests_follow(folder: ClusterFolder) -> None:
    """Sets ``permits.asPodRequests``, without which a sleeping VM's pod keeps its initial requests."""
    with folder.scheduler_config.open("a") as settings:
        settings.write("permits: {asPodRequests: true}\n")


def _is_answered(vm: Json, order: str) -> bool:
    report = sleep_report(vm)
    # The report may be written before the phase.
    return report.order == order and (report.state != SleepState.ASLEEP or text(vm, "status", "phase") == ASLEEP)


async def _table(session: DatabaseSession) -> str:
    return await session.ask("select n from kept")


async def _connect(server: DatabaseServer) -> None:
    session = await DatabaseSession.open(server.host, server.port, server.password)
    try:
        await session.ask("select 1")
    finally:
        session.close()
