"""Moves VMs: asks the planner once a second, books, and has migrations created, cancelled and cleared away (S4.9).

Rules that hold here:

- Room is booked and the source has its order before the object is created. A refusal undoes both; an unknown outcome
  keeps both until the object has been read under its name, which was chosen before.
- "Does not exist" is believed only ``CREATE_SETTLE`` after a creation went missing: until then it may still land.
- While an order has no answer, no further one is given: what cannot be carried out must not pile up. After refusals in
  a row the next order waits longer and longer.
- Nothing is remembered that matters. What a restarted scheduler finds in the API says who moves, and who moved lately.
"""

from __future__ import annotations

import asyncio
from typing import Final, Never

from protocol.messages import ObjectName
from protocol.units import Instant, Seconds
from scheduler_plugin.backoff import Backoff
from scheduler_plugin.cluster.api import ApiError, ApiRefusedError
from scheduler_plugin.cluster.migrations import MigrationOrder
from scheduler_plugin.context import SchedulerContext
from scheduler_plugin.ledger import CreateMigration, Creation, Move, ReadMigration
from scheduler_plugin.migration import Moment, Plan, Planner
from scheduler_plugin.migration_news import MigrationNews
from scheduler_plugin.placement import Fits
from scheduler_plugin.telemetry import LOG

LOOK: Final = Seconds(1.0)
READ_INTERVAL: Final = Seconds(1.0)
CREATE_SETTLE: Final = Seconds(10.0)
"""A creation that was sent so long ago has landed or never will."""

REFUSED_WAIT: Final = Backoff(Seconds(2.0), Seconds(60.0))
DELETE_RETRY: Final = Seconds(5.0)

NOT_FOUND: Final = 404
CONFLICT: Final = 409
LONGEST_NAME: Final = 200
"""Of a VM's name, so that the migration's and its pod's stay within what Kubernetes takes."""


class Mover:
    """The hand that moves VMs."""

    def __init__(self, desk: SchedulerContext, news: MigrationNews) -> None:
        self._desk = desk
        self._news = news
        self._planner = Planner()
        self._sent_at: dict[ObjectName, Instant] = {}
        self._refusals = 0
        self._not_before = self._desk.clock.now()
        self._unwanted: dict[ObjectName, str] = {}
        self._any_unwanted = asyncio.Event()

    async def run(self) -> None:
        """Works for ever."""
        async with asyncio.TaskGroup() as tasks:
            for work in (self._look(), self._create(), self._settle(), self._delete()):
                tasks.create_task(work)

    # Deciding ---------------------------------------------------------------------------------------------------

    async def _look(self) -> Never:
        while True:
            await self._desk.clock.sleep(LOOK)
            if self._desk.ledger.is_ready:
                self._news.look()
                self._decide()

    def _decide(self) -> None:
        desk = self._desk
        plan = self._plan()
        board, metrics = desk.migration_status, desk.telemetry.migrations
        board.idle = self._idle()
        board.stuck = {stuck.node: stuck.why for stuck in plan.stuck}
        metrics.enabled.set(board.idle is None)
        metrics.stuck.set(len(board.stuck))
        if board.idle is None:
            for move in plan.moves:
                self._book(move)
        cancels = {cancel.migration: cancel.why for cancel in plan.cancels} | self._without_vm()
        for name, why in cancels.items():
            self._news.cancelling(name, why)
        self._unwanted = cancels | dict.fromkeys(plan.forget, "it is over")
        if self._unwanted:
            self._any_unwanted.set()

    def _without_vm(self) -> dict[ObjectName, str]:
        active = [each for each in self._desk.ledger.migrations.values() if each.is_active and each.is_ours]
        return {each.name: f"VM {each.vm} is gone" for each in active if each.vm not in self._desk.feed.vms.facts}

    def _plan(self) -> Plan:
        desk, settings = self._desk, self._desk.feed.settings
        moment = Moment(desk.clock.now(), desk.clock.wall())
        return self._planner.look(desk.ledger, settings.migration, settings.ranking, moment, self._draw)

    def _draw(self, least: int, most: int) -> int:
        return least + int(self._desk.clock.jitter() * (most - least + 1))

    def _idle(self) -> str | None:
        """Why nobody may be moved now; None where VMs may."""
        desk, feed = self._desk, self._desk.feed
        if not feed.settings.migration.enabled:
            return "migration.enabled is false in the settings"
        if feed.migrations.is_missing:
            return "the cluster has no VirtualMachineMigrations (its CRD is missing)"
        if desk.clock.now() < self._not_before:
            return "the API has refused the last order; the log says why"
        doubted = [each for each in desk.ledger.migrations.values() if each.creation is not Creation.DONE]
        return f"the API has not answered yet whether it created {doubted[0].name}" if doubted else None

    def _book(self, move: Move) -> None:
        desk = self._desk
        name = self._name_for(move)
        booking = desk.ledger.book_move(move, name, desk.clock.now())
        if not isinstance(booking.verdict, Fits):
            reason = f"{booking.verdict.message} {booking.detail}".rstrip()
            LOG.warning("move not booked vm=%s to=%s reason=%s", move.vm, move.target, reason)
            return
        LOG.info("move booked vm=%s from=%s to=%s reason=%s", move.vm, move.source, move.target, move.reason)
        desk.order(booking.effects)

    def _name_for(self, move: Move) -> ObjectName:
        """A VM moves at most once a second, so the second tells its migrations apart, also after a restart."""
        return ObjectName(move.vm.namespace, f"{move.vm.name[:LONGEST_NAME]}-{int(self._desk.clock.wall()):x}")

    # Creating ---------------------------------------------------------------------------------------------------

    async def _create(self) -> Never:
        while True:
            await self._carry_out(await self._desk.queues.creations.take())

    async def _carry_out(self, order: CreateMigration) -> None:
        ledger, name, move = self._desk.ledger, order.migration, order.move
        booked = ledger.migrations.get(name)
        if booked is None or booked.trouble is not None:
            self._undo(name, "nobody wants it any more" if booked is None else f"{booked.trouble}")
            return
        settings = self._desk.feed.settings
        wanted = MigrationOrder(
            name, move.vm, move.target, move.reason, settings.migration.timeout, settings.migration_bandwidth
        )
        self._sent_at[name] = self._desk.clock.now()
        try:
            made = await self._desk.writer.create_migration(wanted)
        except ApiRefusedError as error:
            self._refused(name, error)
        except ApiError as error:
            self._doubt(name, error)
        else:
            self._count("created")
            self._refusals = 0
            self._sent_at.pop(name)
            self._desk.order(ledger.migration_created(name))
            self._desk.feed.migrations.learn(made)

    def _refused(self, name: ObjectName, error: ApiRefusedError) -> None:
        if error.status == CONFLICT:
            self._doubt(name, error)
            return
        self._refusals += 1
        clock = self._desk.clock
        self._not_before = Instant(clock.now() + REFUSED_WAIT.delay(self._refusals, clock.jitter()))
        self._undo(name, str(error))

    def _undo(self, name: ObjectName, why: str) -> None:
        self._count("refused")
        self._sent_at.pop(name, None)
        LOG.warning("migration not created, its room is free again migration=%s reason=%s", name, why)
        self._desk.order(self._desk.ledger.migration_refused(name))

    def _doubt(self, name: ObjectName, error: ApiError) -> None:
        self._count("unknown")
        LOG.warning("migration may or may not be created, its room is kept migration=%s error=%s", name, error)
        self._desk.order(self._desk.ledger.migration_unsure(name))

    def _count(self, outcome: str) -> None:
        self._desk.telemetry.migrations.orders.labels(outcome).inc()

    # Reading what became of it ----------------------------------------------------------------------------------

    async def _settle(self) -> Never:
        while True:
            first = await self._desk.queues.migration_reads.take()
            for order in (first, *self._desk.queues.migration_reads.take_all()):
                await self._read(order)
            await self._desk.clock.sleep(READ_INTERVAL)

    async def _read(self, order: ReadMigration) -> None:
        name = order.migration
        try:
            self._desk.feed.migrations.learn(await self._desk.writer.read_migration(name))
            self._sent_at.pop(name, None)
        except ApiError as error:
            is_absent = isinstance(error, ApiRefusedError) and error.status == NOT_FOUND
            if is_absent and not self._may_land(name):
                self._undo(name, "the API has no such object")
            else:
                self._desk.queues.migration_reads.put(name, order)

    def _may_land(self, name: ObjectName) -> bool:
        sent = self._sent_at.get(name)
        return sent is not None and self._desk.clock.now() - sent < CREATE_SETTLE

    # Cancelling, and clearing away ------------------------------------------------------------------------------

    async def _delete(self) -> Never:
        while True:
            await self._any_unwanted.wait()
            self._any_unwanted.clear()
            for name in list(self._unwanted):
                why = self._unwanted.get(name)  # while others were deleted, this one may have become wanted
                if why is not None:
                    await self._remove(name, why)

    async def _remove(self, name: ObjectName, why: str) -> None:
        found = self._desk.feed.migrations.facts.get(name)
        if found is None or found.facts.is_leaving:
            return
        try:
            await self._desk.writer.delete_migration(name, found.facts.uid)
        except ApiError as error:
            if not (isinstance(error, ApiRefusedError) and error.status == NOT_FOUND):
                LOG.warning("migration not deleted, trying again migration=%s why=%s error=%s", name, why, error)
                await self._desk.clock.sleep(DELETE_RETRY)
