"""Events on a person's migration and its VM if it waits for a node, once for each."""

from __future__ import annotations

from protocol.kubernetes.resources import MIGRATIONS
from protocol.runtime.kubernetes.events import EventRecord, EventSubject, about_vm
from protocol.units import Resources
from scheduler_plugin.context import SchedulerContext
from scheduler_plugin.ledger.accounts.claims import ClaimState
from scheduler_plugin.ledger.facts import MigrationFacts
from scheduler_plugin.ledger.moves import Migration
from scheduler_plugin.planner.beneficiaries import no_room
from scheduler_plugin.texts import events
from scheduler_plugin.workers.event_recorder import SchedulerEvents


class WaitReporter:
    """Reports target pods that kube-scheduler refuses."""

    def __init__(self, context: SchedulerContext, notices: SchedulerEvents) -> None:
        self._context = context
        self._notices = notices
        self._told: set[str] = set()

    def reconcile(self) -> None:
        """Report migrations whose target pods are refused for the first time."""
        waiting: set[str] = set()
        for migration in self._context.ledger.migrations.values():
            target = migration.waiting_target
            # Our own are cancelled within seconds, and ``reporter`` reports why.
            if (
                migration.facts is None
                or migration.is_ours
                or not migration.is_active
                or target is None
                or not target.refusal
            ):
                continue
            waiting.add(migration.facts.uid)
            if migration.facts.uid not in self._told:
                self._tell(migration.facts, self._why(migration, target.refusal))
        # A migration that stops waiting is reported again next time.
        self._told = waiting

    def _why(self, migration: Migration, refusal: str) -> str:
        ledger = self._context.ledger
        account = ledger.vms.get(migration.vm)
        claims = (
            [] if account is None else [claim for claim in account.claims if claim.state is not ClaimState.INCOMING]
        )
        # The VM's own node is no target.
        left = {claim.node for claim in claims}
        rooms = (room for name, room in ledger.rooms.items() if name not in left)
        return no_room(rooms, Resources.most(claim.size for claim in claims)) or events.REFUSED.format(refusal=refusal)

    def _tell(self, facts: MigrationFacts, why: str) -> None:
        vm = self._context.feed.vms.facts.get(facts.vm)
        subjects = [EventSubject(MIGRATIONS, facts.name, facts.uid), *([] if vm is None else [about_vm(vm)])]
        for about in subjects:
            name = f"{about.name.name}.{facts.uid[:8]}.waits"
            self._notices.tell(EventRecord(about, *events.migration_waits(facts.name.name, why), name=name))
