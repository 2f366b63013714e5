"""The demonstration of sleep: an idle VM sleeps twice, and an open session and a new one wake it."""

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
from protocol.runtime.clock import Clock
from protocol.units import Resources, Seconds
from scripts.autoscale.demonstration.pgbench import DatabaseServer
from scripts.autoscale.demonstration.sleep.sleep_points import KEPT, TABLE_HAS, SleepPoint, answered, gave_back
from scripts.autoscale.demonstration.vm_database import database_of
from scripts.autoscale.demonstration.waiting import answers
from scripts.autoscale.demonstration.watcher import Watcher, sizes_of
from scripts.autoscale.site import Site, SiteError
from scripts.database_client import DatabaseError, DatabaseSession

_ORDERED: Final = Seconds(60.0)
_REFUSED: Final = Seconds(120.0)
"""A guest that has just booted may have an autovacuum to do, and refuses until that has ended."""
_AGAIN: Final = Seconds(3.0)
_ASKED: Final = Seconds(10.0)
_GIVEN_BACK: Final = Seconds(20.0)
"""Until the agent has given the permit up and the scheduler has stored that."""
_ANSWER: Final = 60.0
_AWAKE: Final = Seconds(60.0)
_ENDS: Final = frozenset({SleepState.AWAKE, SleepState.RESTARTED})


@dataclass(frozen=True, slots=True)
class _Books:
    """The reservation of the VM's node, the VM's size and permit as the API has them, and the memory of its QEMU."""

    reserved: Resources
    size: Resources | None
    permit: str
    qemu_bytes: int | None


@dataclass(slots=True)
class SleepScenario:
    """``watcher`` watches the VM; ``qemu_memory`` is that of its processes in bytes, None if there are none."""

    site: Site
    clock: Clock
    tell: Callable[[str], None]
    watcher: Watcher
    qemu_memory: Callable[[], int | None]
    points: list[SleepPoint] = field(default_factory=list)

    async def play(self) -> None:
        """Adds a point for each sleep. Raises ``SiteError`` if the VM does not sleep, or its database not answer."""
        try:
            async with database_of(self.site, self.watcher.found) as server:
                session = await DatabaseSession.open(server.host, server.port, server.password)
                try:
                    await self._play(session, server)
                finally:
                    session.close()
        except TimeoutError:
            raise SiteError(f"the database gave no answer within {_ANSWER:g} s") from None
        except (DatabaseError, OSError) as error:
            raise SiteError(f"a session with the database broke: {error}") from error

    async def _play(self, session: DatabaseSession, server: DatabaseServer) -> None:
        await session.ask(f"create temporary table kept as select {TABLE_HAS} as n")
        self.tell("a session has made a temporary table, and is idle from now on")
        await self._sleep("the idle session", lambda: _table(session), session)
        await self._sleep("a new session", lambda: _connect(server), session)

    async def _sleep(self, who: str, asks: Callable[[], Awaitable[object]], session: DatabaseSession) -> None:
        """One sleep, which ``who`` ends when it ``asks``; ``session`` reads its table afterwards."""
        before = await self._books()
        # Not the watcher's: it may not have seen yet that the VM woke.
        if (size := before.size) is None:
            raise SiteError("the VM has no size before it is ordered to sleep")
        report, took = await self._fall_asleep()
        asleep = self._point(who, size, before, await self._given_back(before, size), report, took)
        self.tell(gave_back(asleep))
        self.tell(f"{who} asks")
        async with asyncio.timeout(_ANSWER):
            began = self.clock.now()
            await asks()
            waited = Seconds(self.clock.now() - began)
            table = await _table(session)
        awake = await self._awake()
        point = msgspec.structs.replace(
            asleep,
            answer_seconds=round(waited, 3),
            wake_seconds=round(awake.seconds, 3),
            state=awake.state or "",
            table=table,
        )
        self.points.append(point)
        self.tell(f"{answered(point)}: {awake.message}")

    def _point(  # noqa: PLR0913, PLR0917 - all that was seen of one sleep
        self, who: str, size: Resources, before: _Books, now: _Books, report: SleepReport, took: Seconds
    ) -> SleepPoint:
        freed = before.reserved.minus_or_zero(now.reserved)
        return SleepPoint(
            woken_by=who,
            node=self.watcher.snapshot().node,
            asleep_seconds=round(took, 2),
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
        """Orders it to sleep until it does. Raises ``SiteError`` if it refuses for too long."""
        deadline = self.clock.now() + _REFUSED
        while True:
            began = self.clock.now()
            vm, why = await self._order()
            if text(vm, "status", "phase") == ASLEEP:
                return sleep_report(vm), Seconds(self.clock.now() - began)
            if self.clock.now() >= deadline:
                raise SiteError(why)
            self.tell(why)
            await self.clock.sleep(_AGAIN)

    async def _order(self) -> tuple[Json, str]:
        """The VM at the end of one order, and the line about that."""
        order = micro_timestamp(self.clock.wall())
        await self.site.client.merge_patch(VIRTUAL_MACHINES, self.watcher.vm, sleep_order_patch(order))
        vm = await self._until(lambda vm: _is_answered(vm, order), _ORDERED)
        why = sleep_report(vm).message if _is_answered(vm, order) else f"no answer to the order in {_ORDERED:g} s"
        return vm, f"the VM does not sleep: {why}"

    async def _given_back(self, before: _Books, size: Resources) -> _Books:
        """The books once QEMU has ended and the node has ``size`` back, or after a limit."""
        now = before

        async def has_all() -> bool:
            nonlocal now
            now = await self._books()
            return now.qemu_bytes is None and (now.reserved + size).within(before.reserved + KEPT)

        await answers(has_all, self.clock, _GIVEN_BACK)
        return now

    async def _awake(self) -> SleepReport:
        return sleep_report(await self._until(lambda vm: sleep_report(vm).state in _ENDS, _AWAKE))

    async def _until(self, holds: Callable[[Json], bool], at_most: Seconds) -> Json:
        """The VM once ``holds`` does of it, or after ``at_most``."""
        vm: Json = {}

        async def look() -> bool:
            nonlocal vm
            # Not the watcher's: it may be behind the order.
            vm = await self.site.client.get(VIRTUAL_MACHINES, self.watcher.vm)
            return holds(vm)

        await answers(look, self.clock, at_most)
        return vm

    async def _books(self) -> _Books:
        """Raises ``SiteError`` if the scheduler does not answer."""
        node, accounts = self.watcher.snapshot().node, list[Json]()

        async def is_told() -> bool:
            nodes = items(await self.site.of_scheduler("/nodes") or {}, "nodes")
            accounts.extend(account for account in nodes if text(account, "name") == node)
            return bool(accounts)

        # On a busy machine the scheduler may not answer for a moment.
        if not await answers(is_told, self.clock, _ASKED):
            raise SiteError(f"the scheduler does not report what is reserved on {node}")
        reserved = Resources.parse(text(accounts[0], "reserved", "cpu"), text(accounts[0], "reserved", "mem"))
        vm = await self.site.client.get(VIRTUAL_MACHINES, self.watcher.vm)
        qemu_bytes = await asyncio.to_thread(self.qemu_memory)
        return _Books(reserved, sizes_of(vm)[0], annotations_of(vm).get(ANNOTATION_PERMIT, ""), qemu_bytes)


def let_requests_follow(folder: ClusterFolder) -> None:
    """Sets ``permits.asPodRequests``: without it the node keeps what a sleeping VM's ``podResources`` request."""
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
