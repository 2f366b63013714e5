"""Runs the planner every second, reserves room, and orders creations and deletions (S4.9).

Rules:

- Room is reserved on the target before the object is created.
- No state here needs to survive: a restarted scheduler reads from the API server which VMs move or have moved.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final, Never

from protocol.kubernetes.api import ApiError, Tolerating
from protocol.kubernetes.refusals import RefusalKind
from protocol.messages import ObjectName
from protocol.units import Instant, Seconds
from scheduler_plugin.context import SchedulerContext
from scheduler_plugin.ledger.events import HeadroomSeen, MoveRequested
from scheduler_plugin.ledger.moves import Move
from scheduler_plugin.migration.abandoned import AbandonedMigrations
from scheduler_plugin.migration.creation import MigrationCreator
from scheduler_plugin.migration.reporter import MigrationReporter
from scheduler_plugin.order_queues import for_each
from scheduler_plugin.placement.verdict import Fits
from scheduler_plugin.planner.plan import MovePlan
from scheduler_plugin.planner.planner import Planner, PlanSteps
from scheduler_plugin.planner.victims import PlanningTime
from scheduler_plugin.telemetry import LOG
from scheduler_plugin.texts import explanations, logs

PLAN_INTERVAL: Final = Seconds(1.0)
DELETE_RETRY: Final = Seconds(5.0)
FAILED_ROUND_WAIT: Final = Seconds(30.0)
"""Wait after a failed planning round."""

MAX_NAME: Final = 200
"""Maximum part of the VM's name in a migration's name, so that the name of its pod stays within Kubernetes' limit."""


class Mover:
    """Runs the planner and carries out its plans."""

    def __init__(self, context: SchedulerContext, reporter: MigrationReporter, planner: Planner) -> None:
        self._context = context
        self._reporter = reporter
        self._planner = planner
        self._next_round_at = context.clock.now()
        context.migration_status.refused = planner.refused
        context.migration_status.growth_obstacle = planner.growth_obstacle
        self._creator = MigrationCreator(context, planner.refused_orders)
        self._remover = MigrationRemover(context)
        self._abandoned = AbandonedMigrations(context)

    async def run(self) -> None:
        """Run until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for work in (self._reconcile(), self._creator.run(), self._remover.run(), self._abandoned.run()):
                tasks.create_task(work)

    async def _reconcile(self) -> Never:
        while True:
            await self._context.clock.sleep(PLAN_INTERVAL)
            if self._context.ledger.is_ready:
                self._reporter.reconcile()
                if self._context.clock.now() >= self._next_round_at:
                    await self._decide()

    async def _decide(self) -> None:
        try:
            plan = await self._planned(self._plan_steps())
        # A bug is logged and counted, and moves nothing: permits and binds go on.
        except Exception:  # noqa: BLE001 - one odd VM must not stop the scheduler for all others
            self._note_failure()
            return
        ledger, now = self._context.ledger, self._context.clock.now()
        self._context.queues.add(ledger.apply(HeadroomSeen(self._planner.lacks_headroom(now)), now))
        idle = self._idle()
        self._publish(plan, idle)
        if idle is None:
            for move in plan.moves:
                self._reserve(move)
        # Even if no VM may move: active migrations must be able to end.
        cancels = {cancel.migration: cancel.why for cancel in plan.cancels} | self._without_vm()
        for name, why in cancels.items():
            self._reporter.cancelling(name, why)
        self._remover.set_unwanted(cancels | dict.fromkeys(plan.forget, explanations.ENDED))

    def _note_failure(self) -> None:
        LOG.exception(logs.PLANNING_FAILED, extra={"wait": FAILED_ROUND_WAIT})
        self._context.telemetry.migrations.failed_rounds.inc()
        self._next_round_at = Instant(self._context.clock.now() + FAILED_ROUND_WAIT)
        self._publish(MovePlan(), explanations.PLANNING_FAILED)
        # An earlier plan's deletions may be wrong now.
        self._remover.set_unwanted({})

    def _publish(self, plan: MovePlan, idle: str | None) -> None:
        status, metrics = self._context.migration_status, self._context.telemetry.migrations
        status.idle = idle
        status.stuck = {stuck.node: stuck.why for stuck in plan.stuck}
        metrics.enabled.set(idle is None)
        metrics.stuck.set(len(status.stuck))
        metrics.refused.set(len(status.refused))
        since = self._planner.unrelieved_since
        metrics.unrelieved.set(0.0 if since is None else self._context.clock.now() - since)

    def _without_vm(self) -> dict[ObjectName, str]:
        active = [
            migration
            for migration in self._context.ledger.migrations.values()
            if migration.is_active and migration.is_ours
        ]
        return {
            migration.name: explanations.CANCELLED_VM_GONE.format(vm=migration.vm)
            for migration in active
            if migration.vm not in self._context.feed.vms.facts
        }

    async def _planned(self, steps: PlanSteps) -> MovePlan:
        """Compute the plan without blocking the event loop for longer than one step."""
        while True:
            try:
                next(steps)
            except StopIteration as done:
                plan: MovePlan = done.value
                return plan
            # Let other tasks answer agents and kube-scheduler.
            await asyncio.sleep(0)

    def _plan_steps(self) -> PlanSteps:
        context, settings = self._context, self._context.feed.settings
        now = PlanningTime(context.clock.now(), context.clock.wall())
        return self._planner.plan(
            context.ledger,
            settings.migration,
            settings.ranking,
            now,
            self._draw,
            constraint_context=context.feed.constraint_context,
        )

    def _draw(self, least: int, most: int) -> int:
        return least + int(self._context.clock.jitter() * (most - least + 1))

    def _idle(self) -> str | None:
        """The reason why no VM may move now; None if VMs may."""
        feed = self._context.feed
        if not feed.settings.migration.enabled:
            return explanations.DISABLED
        if feed.migrations.is_missing:
            return explanations.NO_MIGRATIONS
        # One order at a time: failing orders must not pile up.
        return self._creator.blocked_by

    def _reserve(self, move: Move) -> None:
        context = self._context
        reservation = context.ledger.apply(MoveRequested(move, self._name_for(move)), context.clock.now())
        context.queues.add(reservation.effects)
        # The ledger may have changed since planning.
        if not isinstance(reservation.verdict, Fits):
            reason = f"{reservation.verdict.message} {reservation.detail}".rstrip()
            LOG.warning(logs.MOVE_NOT_RESERVED, extra={"vm": str(move.vm), "to": move.target, "reason": reason})
            return
        details = {"vm": str(move.vm), "from": move.source, "to": move.target, "reason": move.reason}
        LOG.info(logs.MOVE_RESERVED, extra=details)
        context.telemetry.migrations.causes.labels(move.cause.value).inc()

    def _name_for(self, move: Move) -> ObjectName:
        """A name that no other migration of the VM has had."""
        # A VM moves at most once a second, so the time is unique, also after a restart.
        return ObjectName(move.vm.namespace, f"{move.vm.name[:MAX_NAME]}-{int(self._context.clock.wall()):x}")


class MigrationRemover:
    """Deletes VirtualMachineMigrations: cancels unwanted ones, and removes ended ones (S4.9).

    It retries the migrations of the last ``set_unwanted`` until they are gone.
    """

    def __init__(self, context: SchedulerContext) -> None:
        self._context = context
        self._unwanted: Mapping[ObjectName, str] = {}
        self._any_unwanted = asyncio.Event()

    def set_unwanted(self, unwanted: Mapping[ObjectName, str]) -> None:
        """Replace the migrations to delete: names and reasons."""
        self._unwanted = unwanted
        if unwanted:
            self._any_unwanted.set()

    async def run(self) -> Never:
        """Run until cancelled."""
        while True:
            await self._any_unwanted.wait()
            self._any_unwanted.clear()
            if not all(await for_each(list(self._unwanted), self._remove)):
                await self._context.clock.sleep(DELETE_RETRY)

    async def _remove(self, name: ObjectName) -> bool:
        """Delete the migration if it is still unwanted. Return False on failure."""
        why = self._unwanted.get(name)  # may have changed while others were deleted
        migration = self._context.feed.migrations.facts.get(name)
        if why is None or migration is None or migration.facts.is_terminating:
            return True
        try:
            # With the UID: someone may have recreated it under the same name. Already deleted is fine.
            with Tolerating(RefusalKind.NOT_FOUND):
                await self._context.writer.delete_migration(name, migration.facts.uid)
        except ApiError as error:
            details = {"migration": str(name), "why": why, "reason": str(error)}
            LOG.warning(logs.NOT_DELETED, extra=details)
            return False
        return True
