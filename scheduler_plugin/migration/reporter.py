"""Reports migrations: Events on the VM, metrics, and a log line for each step.

It compares two states of the cluster. After a start, it reports again everything that is not older than ``RECENT``.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Final

from protocol.kubernetes.resources import MIGRATIONS, PODS
from protocol.messages import ObjectName
from protocol.runtime.kubernetes.events import EventRecord, EventSubject, about_vm
from protocol.units import Resources, Seconds
from scheduler_plugin.cluster.migrations import ClusterMigration
from scheduler_plugin.context import SchedulerContext
from scheduler_plugin.ledger.accounts.claims import ClaimState
from scheduler_plugin.ledger.facts import MigrationFacts, MigrationPhase
from scheduler_plugin.ledger.moves import Migration
from scheduler_plugin.planner.beneficiaries import nearest_room_text, waiting_for_room
from scheduler_plugin.telemetry import LOG
from scheduler_plugin.texts import events, logs
from scheduler_plugin.workers.event_recorder import SchedulerEvents

RECENT: Final = Seconds(600.0)
"""Migrations that ended earlier are not reported after a start."""

MAX_NOTIFIED: Final = 5
"""Maximum number of waiting pods or VMs of a node that get an Event about one move."""

ACTIVE: Final = (MigrationPhase.PENDING, MigrationPhase.RUNNING)


class MigrationReporter:
    """Compares the present migrations with the last call's."""

    def __init__(self, context: SchedulerContext, recorder: SchedulerEvents) -> None:
        self._context = context
        self._events = recorder
        active = context.telemetry.migrations.active
        self._active = {phase: active.labels(phase.value.lower()) for phase in ACTIVE}
        self._reported: dict[ObjectName, ClusterMigration] | None = None
        self._routes: dict[ObjectName, tuple[str, str]] = {}
        self._cancelled: dict[ObjectName, str] = {}
        self._stalled: set[ObjectName] = set()
        self._reported_waiting: set[str] = set()

    def cancelling(self, name: ObjectName, why: str) -> None:
        """Record that this scheduler cancels the migration."""
        if name not in self._cancelled:
            self._cancelled[name] = why
            LOG.info(logs.CANCELLED, extra={"migration": str(name), "reason": why})

    def reconcile(self) -> None:
        """Report changes since the last call."""
        self._report_waiting()
        cached = self._context.feed.migrations.facts
        current = {name: migration for name, migration in cached.items() if not migration.facts.is_released}
        for name, migration in current.items():
            before = None if self._reported is None else self._reported.get(name)
            if before is not migration:
                self._report_change(before, migration)
        for name, before in (self._reported or {}).items():
            if name not in current:
                self._report_deleted(before)
        self._reported = current
        self._forget_orders_never_carried_out()
        self._report_stalled(current)
        phases = [migration.facts.phase for migration in current.values()]
        for phase, gauge in self._active.items():
            gauge.set(phases.count(phase))

    def _report_stalled(self, current: Mapping[ObjectName, ClusterMigration]) -> None:
        """Report migrations that do not start: they no longer count, and their creators can cancel them."""
        ledger = self._context.ledger.migrations
        stalled = {name for name, ordered in ledger.items() if ordered.is_stalled and name in current}
        for name in sorted(stalled - self._stalled):
            migration, why = current[name], ledger[name].waiting_target
            refusal = "" if why is None else why.refusal
            self._record(migration, events.migration_stalled(name.name, ledger[name].problem, refusal), is_warning=True)
            LOG.warning(logs.NOT_STARTED, extra={"migration": str(name), "vm": str(migration.facts.vm)})
        self._stalled = stalled
        self._context.telemetry.migrations.stalled.set(len(stalled))

    def _forget_orders_never_carried_out(self) -> None:
        existing, ordered = self._context.feed.migrations.facts, self._context.ledger.migrations
        # An order may be cancelled before its object exists.
        self._cancelled = {name: why for name, why in self._cancelled.items() if name in existing or name in ordered}

    def _report_change(self, before: ClusterMigration | None, migration: ClusterMigration) -> None:
        facts = migration.facts
        # Recreated between two calls.
        if before is not None and before.facts.uid != facts.uid:
            self._report_deleted(before)
            before = None
        self._note_route(migration)
        if self._reported is None and self._is_old(migration):
            return
        if before is None:
            source, target = self._routes[facts.name]
            # After a start it is unknown when it began.
            line = logs.ALREADY_IN_PROGRESS if self._reported is None else logs.STARTED
            details = {"vm": str(facts.vm), "from": source, "to": target, "reason": migration.reason}
            LOG.info(line, extra=details)
            self._record(migration, events.migration_started(source, target, migration.reason))
            self._notify_waiting(migration, source, target)
        if facts.phase.is_over and (before is None or not before.facts.phase.is_over):
            self._ended(migration, is_success=facts.phase is MigrationPhase.SUCCEEDED)

    def _notify_waiting(self, migration: ClusterMigration, source: str, target: str) -> None:
        """Record an Event on denied VMs, and on pods waiting for room, that another VM moves away (B.14)."""
        facts = migration.facts
        # A user's migration makes room only by chance.
        waiting = waiting_for_room(self._context.ledger, source) if facts.is_ours else []
        for claim in waiting[:MAX_NOTIFIED]:
            vm = self._context.feed.vm_of(claim.pod)
            about = EventSubject(PODS, claim.pod.name, claim.pod.uid) if vm is None else about_vm(vm)
            text = events.room_being_made(facts.vm, source, target)
            name = f"{about.name.name}.{facts.uid[:8]}.room"
            self._events.record(EventRecord(about, *text, is_warning=False, name=name))

    def _is_old(self, migration: ClusterMigration) -> bool:
        ended_at = migration.facts.ended_at
        return ended_at is not None and self._context.clock.wall() - ended_at >= RECENT

    def _note_route(self, migration: ClusterMigration) -> None:
        """Remember source and target of the migration."""
        in_ledger = self._context.ledger.migrations.get(migration.facts.name)
        old = self._routes.get(migration.facts.name, (None, None))
        # The ledger knows the nodes while the pods exist; afterwards use the remembered ones.
        source = migration.source_node or (in_ledger and in_ledger.source) or old[0] or events.UNKNOWN_SOURCE
        target = migration.target_node or (in_ledger and in_ledger.destination) or old[1] or events.UNKNOWN_TARGET
        self._routes[migration.facts.name] = (source, target)

    def _report_deleted(self, before: ClusterMigration) -> None:
        facts = before.facts
        if not facts.phase.is_over:
            vm = self._context.feed.vms.facts.get(facts.vm)
            # Deleted before its end was seen: cancelled, unless the VM runs in its target pod.
            arrived = vm is not None and facts.target_pod == ObjectName(facts.vm.namespace, vm.pod_name or "")
            self._cancelled.setdefault(facts.name, events.DELETED)
            self._ended(before, is_success=arrived)
        self._cancelled.pop(facts.name, None)
        self._routes.pop(facts.name, None)

    def _ended(self, migration: ClusterMigration, *, is_success: bool) -> None:
        facts = migration.facts
        source, target = self._routes[facts.name]
        if facts.is_terminating:
            self._cancelled.setdefault(facts.name, events.DELETED)
        cancelled = self._cancelled.get(facts.name)
        outcome = "succeeded" if is_success else "cancelled" if cancelled or migration.is_cancelled else "failed"
        why = events.CANCELLED.format(why=cancelled) if cancelled else migration.why or events.NO_REASON
        numbers = events.migration_numbers(migration.total, migration.downtime)
        # Only for migrations that this process saw end.
        if self._reported is not None:
            self._count(migration, outcome)
            details = {"vm": str(facts.vm), "from": source, "to": target, "reason": numbers if is_success else why}
            LOG.log(logging.INFO if is_success else logging.WARNING, logs.ENDED.format(outcome=outcome), extra=details)
        if is_success:
            self._record(migration, events.migration_succeeded(source, target, numbers))
        else:
            self._record(migration, events.migration_failed(source, target, why), is_warning=True)

    def _count(self, migration: ClusterMigration, outcome: str) -> None:
        metrics = self._context.telemetry.migrations
        metrics.ended.labels(outcome).inc()
        if outcome == "succeeded":
            for histogram, span in ((metrics.total, migration.total), (metrics.downtime, migration.downtime)):
                if span is not None:
                    histogram.observe(span)

    def _record(self, migration: ClusterMigration, text: events.EventText, *, is_warning: bool = False) -> None:
        facts = migration.facts
        vm = self._context.feed.vms.facts.get(facts.vm)
        if vm is not None:
            # One name per step, so that a restart does not write the same Event twice.
            reason, note = text
            name = f"{facts.name.name}.{facts.uid[:8]}.{reason.removeprefix('Migration').lower()}"
            self._events.record(EventRecord(about_vm(vm), reason, note, is_warning=is_warning, name=name))

    def _report_waiting(self) -> None:
        """Report, once each, migrations created by users whose target pods kube-scheduler refuses."""
        waiting: set[str] = set()
        for migration in self._context.ledger.migrations.values():
            target = migration.waiting_target
            # Our own are cancelled within seconds, and that reports why.
            if (
                migration.facts is None
                or migration.is_ours
                or not migration.is_active
                or target is None
                or not target.refusal
            ):
                continue
            waiting.add(migration.facts.uid)
            if migration.facts.uid not in self._reported_waiting:
                self._record_waiting(migration.facts, self._no_place(migration, target.refusal))
        # A migration that stops waiting is reported again next time.
        self._reported_waiting = waiting

    def _no_place(self, migration: Migration, refusal: str) -> str:
        ledger = self._context.ledger
        account = ledger.vms.get(migration.vm)
        claims = (
            [] if account is None else [claim for claim in account.claims if claim.state is not ClaimState.INCOMING]
        )
        # The VM's own node is no target.
        left = {claim.node for claim in claims}
        rooms = (room for name, room in ledger.rooms.items() if name not in left)
        return nearest_room_text(rooms, Resources.most(claim.size for claim in claims)) or events.REFUSED.format(
            refusal=refusal
        )

    def _record_waiting(self, facts: MigrationFacts, why: str) -> None:
        vm = self._context.feed.vms.facts.get(facts.vm)
        subjects = [EventSubject(MIGRATIONS, facts.name, facts.uid), *([] if vm is None else [about_vm(vm)])]
        for about in subjects:
            name = f"{about.name.name}.{facts.uid[:8]}.waits"
            self._events.record(EventRecord(about, *events.migration_waits(facts.name.name, why), name=name))
