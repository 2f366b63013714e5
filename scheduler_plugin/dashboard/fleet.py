"""The live fleet: informers and the scheduler's reports, as rows in a journal."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Final

import msgspec

from protocol.kubernetes.access_reviews import Scope
from protocol.kubernetes.api import KubernetesApi
from protocol.kubernetes.objects import Json, JsonObject, shortened
from protocol.kubernetes.resources import HVPAS, MIGRATIONS, PODS, TORTOISES, VIRTUAL_MACHINES, VM_GROUPS, Resource
from protocol.messages import ObjectName
from protocol.pod_database import is_pod_database
from protocol.runtime.clock import Clock
from protocol.runtime.kubernetes.watches.informer import FactInformer
from protocol.runtime.kubernetes.watches.kinds import FactChange, Kind
from protocol.units import Seconds
from scheduler_plugin.dashboard import texts
from scheduler_plugin.dashboard.core.frames import GROUP, MOVE, NODE, STATUS, VM
from scheduler_plugin.dashboard.core.journal import Journal
from scheduler_plugin.dashboard.core.reports import (
    SchedulerReport,
    changed_vms,
    problems_in,
    scheduler_reports,
    with_report,
)
from scheduler_plugin.dashboard.core.rows import (
    PENDING,
    Row,
    StatusRow,
    VmRow,
    group_row,
    move_row,
    node_rows,
    status_row,
    vm_row,
    vm_stated,
)
from scheduler_plugin.dashboard.core.states import ConditionTimes
from scheduler_plugin.dashboard.sources.http_sources import Sources
from scheduler_plugin.dashboard.telemetry import DashboardTelemetry
from scheduler_plugin.databases import OPTED_IN

POLL_INTERVAL: Final = Seconds(1.0)
"""Minimum pause between queries of the scheduler; slow responses increase it."""

GROUP_KINDS: Final = (VM_GROUPS, HVPAS, TORTOISES)
WATCHED: Final = (VIRTUAL_MACHINES, PODS, MIGRATIONS)
"""Kinds for which the page reports that their watches are silent."""
_PAUSE_FACTOR: Final = 4
"""The pause is this multiple of the last query's duration, from ``POLL_INTERVAL`` to ``LONGEST_PAUSE``."""
LONGEST_PAUSE: Final = Seconds(5.0)


class Fleet:
    """The rows of all kinds. ``on_change`` is called after each change, and must not block."""

    def __init__(self, sources: Sources, clock: Clock, telemetry: DashboardTelemetry) -> None:
        self.journal = Journal()
        self.on_change: Callable[[], None] = lambda: None
        self.synced = asyncio.Event()
        self._sources, self._clock = sources, clock
        self._reports: dict[str, SchedulerReport] = {}
        self._waiting, self._silent_agents = ConditionTimes(), ConditionTimes()
        self._troubles: dict[str, str] = {}
        self._status: StatusRow | None = None
        self._silent = 0
        # The page is ready once these are listed. Missing and forbidden kinds count as listed.
        self._unlisted = {VIRTUAL_MACHINES.plural, PODS.plural}
        self._informers: dict[Resource, FactInformer[Row | None]] = {
            VIRTUAL_MACHINES: self._informer(VIRTUAL_MACHINES, VM, vm_row, telemetry),
            PODS: self._informer(PODS, VM, _pod_row, telemetry),
            MIGRATIONS: self._informer(MIGRATIONS, MOVE, move_row, telemetry),
        }
        for kind in GROUP_KINDS:
            self._informers[kind] = self._informer(kind, GROUP, partial(group_row, kind.kind), telemetry)

    def _informer(
        self, kind: Resource, rows: str, read: Callable[[JsonObject], Row | None], telemetry: DashboardTelemetry
    ) -> FactInformer[Row | None]:
        is_extra, labels = kind is not VIRTUAL_MACHINES, OPTED_IN if kind is PODS else ""
        watched = Kind(kind, read, is_optional=is_extra, may_be_forbidden=is_extra, labels=labels)
        return FactInformer(watched, partial(self._changed, rows), telemetry)

    @property
    def missing(self) -> list[str]:
        """Kinds that have not been listed yet."""
        return sorted(self._unlisted)

    @property
    def scopes(self) -> set[Scope]:
        """Scopes that have rows."""
        return {
            Scope(name.namespace, kind is PODS) for kind, informer in self._informers.items() for name in informer.facts
        }

    async def run(self, api: KubernetesApi) -> None:
        """Watch the cluster until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for kind, informer in self._informers.items():
                tasks.create_task(informer.run(api, self._clock, partial(self._listed, kind.plural)))
            tasks.create_task(self._poll())

    def record_explanation(self, vm: ObjectName, explanation: Json | None) -> None:
        """Store the problems in an agent's explanation of a VM; None if the agent did not respond."""
        key, troubles = str(vm), problems_in(explanation or {})
        trouble = shortened(texts.TROUBLE.format(parts="; ".join(troubles))) if troubles else ""
        # Ignore a late response for a deleted VM.
        if trouble == self._troubles.get(key, "") or self.journal.get(VM, key) is None:
            return
        if trouble:
            self._troubles[key] = trouble
        else:
            del self._troubles[key]
        if self._renew([key]):
            self.on_change()

    async def poll(self) -> None:
        """Query the scheduler once."""
        # Sizes and permits come from watches, reservations and denials only from here.
        answer = await self._sources.of_scheduler("/nodes")
        # Without a response keep the numbers; the page shows that they are stale.
        self._status = status_row(answer)
        self._check_watches()
        has_changed = self._update_status()
        if answer is not None:
            # In a thread, because a large fleet would block the event loop.
            nodes, reports = await asyncio.to_thread(lambda: (node_rows(answer), scheduler_reports(answer)))
            has_changed = self.journal.replace(NODE, nodes) or has_changed
            # Only these rows may have changed.
            changed, self._reports = changed_vms(self._reports, reports), reports
            has_changed = self._renew([*changed, *self._update_silent(reports)]) or has_changed
        # There is no event for a VM that has waited for a minute.
        has_changed = self._renew(self._waiting.long(self._clock.now())) or has_changed
        if has_changed:
            self.on_change()

    def _update_silent(self, reports: Mapping[str, SchedulerReport]) -> list[str]:
        """Return the VMs whose agents have been silent for long; a new leader has heard from no agent at first."""
        now = self._clock.now()
        # Without a report in between, the time starts again.
        for key in self._silent_agents.keys - reports.keys():
            self._silent_agents.update(key, now, is_so=False)
        for key, report in reports.items():
            self._silent_agents.update(key, now, is_so=report.silent)
        return self._silent_agents.long(now)

    def _renew(self, keys: Iterable[str]) -> bool:
        rows = [row for key in keys if isinstance(row := self.journal.get(VM, key), VmRow)]
        # A list, because ``any`` would stop at the first change.
        changes = [self.journal.put(VM, self._merged(row)) for row in rows]
        return any(changes)

    def _merged(self, row: VmRow) -> VmRow:
        now, reported = self._clock.now(), with_report(row, self._reports.get(row.key))
        trouble = texts.NO_CONTACT if self._silent_agents.is_long(row.key, now) else self._troubles.get(row.key, "")
        return vm_stated(
            msgspec.structs.replace(reported, waiting=self._waiting.is_long(row.key, now), trouble=trouble)
        )

    async def _poll(self) -> None:
        while True:
            begun = self._clock.now()
            await self.poll()
            pause = Seconds((self._clock.now() - begun) * _PAUSE_FACTOR)
            await self._clock.sleep(min(LONGEST_PAUSE, max(POLL_INTERVAL, pause)))

    def _check_watches(self) -> None:
        if all(self._informers[kind].is_answered for kind in WATCHED):
            self._silent = 0
        # Wall-clock time to display, set when silence is first noticed.
        elif not self._silent:
            self._silent = round(self._clock.wall())

    def _update_status(self) -> bool:
        # The scheduler has not been queried yet.
        if self._status is None:
            return False
        row = msgspec.structs.replace(self._status, listed=not self._unlisted, silent=self._silent)
        return self.journal.put(STATUS, row)

    def _listed(self, plural: str) -> None:
        self._unlisted.discard(plural)
        if not self._unlisted:
            self.synced.set()
        if self._update_status():
            self.on_change()

    def _changed(self, rows: str, change: FactChange[Row | None]) -> None:
        # The key of a deleted object is in its last fact.
        row = change.after if change.after is not None else change.before
        if row is None:
            return
        if change.after is None:
            # A migration may have the same name as a VM.
            if isinstance(row, VmRow):
                self._waiting.update(row.key, self._clock.now(), is_so=False)
                self._troubles.pop(row.key, None)
            has_changed = self.journal.remove(rows, row.key)
        elif isinstance(row, VmRow):
            self._waiting.update(row.key, self._clock.now(), is_so=row.phase == PENDING)
            has_changed = self.journal.put(rows, self._merged(row))
        else:
            has_changed = self.journal.put(rows, row)
        if has_changed:
            self.on_change()


def _pod_row(pod: JsonObject) -> Row | None:
    return vm_row(pod) if is_pod_database(pod) else None
