"""Creates the VirtualMachineMigrations for which the ledger has reserved room (S4.9).

A certain refusal releases the room. An unknown outcome keeps it until the object has been read by its name, which was
chosen before the creation.
"""

from __future__ import annotations

import asyncio
from typing import Final, Never

from protocol.kubernetes.api import ApiError, ApiRefusedError
from protocol.kubernetes.refusals import RefusalKind
from protocol.kubernetes.resources import MIGRATIONS
from protocol.messages import ObjectName
from protocol.units import Seconds
from scheduler_plugin.cluster.write import RecentWrites
from scheduler_plugin.context import SchedulerContext
from scheduler_plugin.ledger.events import MigrationCreateEnded, WriteOutcome
from scheduler_plugin.ledger.moves import Creation
from scheduler_plugin.ledger.outcomes import CreateMigration, ReadMigration
from scheduler_plugin.planner.refused_orders import RefusedOrders
from scheduler_plugin.telemetry import LOG
from scheduler_plugin.texts import explanations, logs

READ_INTERVAL: Final = Seconds(1.0)
CREATE_SETTLE: Final = Seconds(10.0)
"""A creation sent this long ago has landed or never will."""

ABOUT_US: Final = frozenset({RefusalKind.UNAUTHORIZED, RefusalKind.TOO_MANY_REQUESTS})
"""Refusals that any other VM would get too."""


class MigrationCreator:
    """Carries out ``CreateMigration`` and ``ReadMigration``, and reports their outcomes to the ledger."""

    def __init__(self, context: SchedulerContext, refused: RefusedOrders) -> None:
        self._context = context
        self._in_flight: RecentWrites[ObjectName] = RecentWrites(CREATE_SETTLE)
        self._refusals = refused

    async def run(self) -> None:
        """Run until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._create())
            tasks.create_task(self._read_all())

    @property
    def blocked_by(self) -> str | None:
        """The reason not to order a migration now; None if there is none."""
        if self._refusals.all_wait(self._context.clock.now()):
            return explanations.ORDER_REFUSED
        uncertain = [
            migration
            for migration in self._context.ledger.migrations.values()
            if migration.creation is not Creation.DONE
        ]
        return explanations.ORDER_IN_DOUBT.format(migration=uncertain[0].name) if uncertain else None

    async def _create(self) -> Never:
        while True:
            await self._carry_out(await self._context.queues.creations.take())

    async def _carry_out(self, order: CreateMigration) -> None:
        name, move = order.migration, order.move
        reserved = self._context.ledger.migrations.get(name)
        # The order was queued; its room may be gone.
        if reserved is None or reserved.problem is not None:
            self._undo(name, explanations.NOT_WANTED if reserved is None else f"{reserved.problem}")
            return
        settings = self._context.feed.settings
        # Before the call: it may land even if this task is cancelled during it.
        self._in_flight.sent(name, self._context.clock.now())
        try:
            created = await self._context.writer.create_migration(
                order, settings.migration.timeout, settings.migration_bandwidth
            )
        except ApiRefusedError as error:
            self._refused(order, error)
        except ApiError as error:
            self._outcome_unknown(name, error)
        else:
            self._count("created")
            self._refusals.made(move.vm)
            self._in_flight.settled(name)
            self._context.report(MigrationCreateEnded(name, WriteOutcome.DONE))
            # The watch may be late.
            self._context.feed.migrations.learn(created)

    def _refused(self, order: CreateMigration, error: ApiRefusedError) -> None:
        name, clock = order.migration, self._context.clock
        # It may be our own object, from a try without a response.
        if error.kind in (RefusalKind.CONFLICT, RefusalKind.ALREADY_EXISTS):
            self._outcome_unknown(name, error)
            return
        if error.kind in ABOUT_US:
            self._refusals.refused_all(clock.now(), clock.jitter())
        else:
            delays = self._context.feed.settings.migration.delays
            self._refusals.refused(order.move.vm, clock.now(), delays, clock.jitter())
        self._undo(name, str(error))

    def _undo(self, name: ObjectName, why: str) -> None:
        self._count("refused")
        self._in_flight.settled(name)
        LOG.warning(logs.NOT_CREATED, extra={"migration": str(name), "reason": why})
        self._context.report(MigrationCreateEnded(name, WriteOutcome.REFUSED))

    def _outcome_unknown(self, name: ObjectName, error: ApiError) -> None:
        self._count("unknown")
        details = {"migration": str(name), "reason": str(error)}
        LOG.warning(logs.CREATION_IN_DOUBT, extra=details)
        self._context.report(MigrationCreateEnded(name, WriteOutcome.UNKNOWN))

    def _count(self, outcome: str) -> None:
        self._context.telemetry.migrations.orders.labels(outcome).inc()

    async def _read_all(self) -> Never:
        while True:
            for order in await self._context.queues.migration_reads.take_all():
                await self._read(order)
            # Requeued reads are repeated in the next round, not immediately.
            await self._context.clock.sleep(READ_INTERVAL)

    async def _read(self, order: ReadMigration) -> None:
        name = order.migration
        try:
            migration = await self._context.feed.migrations.read(name, self._context.writer.read(MIGRATIONS, name))
            self._in_flight.settled(name)
            if migration is None:
                # Not known until it can be decoded: its target pod is not placed, and its controller ends it.
                self._note_lost(name)
                self._undo(name, explanations.NOTHING_READABLE)
            else:
                self._refusals.made(migration.facts.vm)
        except ApiError as error:
            is_absent = isinstance(error, ApiRefusedError) and error.kind is RefusalKind.NOT_FOUND
            # Until ``CREATE_SETTLE`` after a lost creation, it may still land.
            if is_absent and not self._in_flight.may_land(name, self._context.clock.now()):
                self._note_lost(name)
                self._undo(name, explanations.NO_SUCH_OBJECT)
            else:
                self._context.queues.migration_reads.put(name, order)

    def _note_lost(self, name: ObjectName) -> None:
        """Record a creation that never landed."""
        migration = self._context.ledger.migrations.get(name)
        # A migration that was created and deleted says nothing about its VM.
        if migration is not None and migration.creation is Creation.UNSURE:
            self._refusals.lost(migration.vm, self._context.clock.now(), self._context.feed.settings.migration.delays)
