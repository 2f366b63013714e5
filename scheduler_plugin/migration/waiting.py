"""Says why a person's migration waits for a node: an Event on the migration and on its VM, once for each.

- What is ours is called off within seconds, and says why then (``reporter``).
"""

from __future__ import annotations

from protocol.kubernetes.resources import MIGRATIONS
from protocol.units import Resources
from scheduler_plugin.cluster.events import EventRecord, EventSubject, about_vm
from scheduler_plugin.context import SchedulerContext
from scheduler_plugin.ledger import ClaimState, Migration
from scheduler_plugin.ledger.facts import MigrationFacts
from scheduler_plugin.planner import no_room
from scheduler_plugin.workers.event_recorder import SchedulerEvents


class WaitReporter:
    """Looks for target pods that kube-scheduler refuses."""

    def __init__(self, context: SchedulerContext, notices: SchedulerEvents) -> None:
        self._context = context
        self._notices = notices
        self._told: set[str] = set()

    def reconcile(self) -> None:
        """Tells of those that are refused for the first time."""
        waiting: set[str] = set()
        for each in self._context.ledger.migrations.values():
            target = each.waiting_target
            if each.facts is None or each.is_ours or not each.is_active or target is None or not target.refusal:
                continue
            waiting.add(each.facts.uid)
            if each.facts.uid not in self._told:
                self._tell(each.facts, self._why(each, target.refusal))
        self._told = waiting

    def _why(self, migration: Migration, refusal: str) -> str:
        ledger = self._context.ledger
        account = ledger.vms.get(migration.vm)
        claims = [] if account is None else [each for each in account.claims if each.state is not ClaimState.INCOMING]
        left = {each.node for each in claims}
        rooms = (room for name, room in ledger.rooms.items() if name not in left)
        return no_room(rooms, Resources.most(each.size for each in claims)) or f"kube-scheduler says: {refusal}"

    def _tell(self, facts: MigrationFacts, why: str) -> None:
        vm = self._context.feed.vms.facts.get(facts.vm)
        subjects = [EventSubject(MIGRATIONS, facts.name, facts.uid), *([] if vm is None else [about_vm(vm)])]
        for about in subjects:
            name = f"{about.name.name}.{facts.uid[:8]}.waits"
            self._notices.tell(EventRecord(about, "MigrationWaits", f"{facts.name.name} waits: {why}", name=name))
