"""Details of single objects, fetched when a user opens one: a database, a group, costs or the settings."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Final

from protocol.kubernetes.access_reviews import Scope
from protocol.kubernetes.api import ApiCall, ApiError, KubernetesApi
from protocol.kubernetes.objects import Json, items, name_of, uid_of
from protocol.kubernetes.resources import EVENTS, escaped
from protocol.messages import ObjectName
from protocol.pod_database import is_pod_database
from protocol.runtime.clock import Clock
from protocol.runtime.serving.fair_slots import FairSlots
from protocol.units import Seconds
from scheduler_plugin.dashboard.core.past import past
from scheduler_plugin.dashboard.core.visibility import VisibilityFilter
from scheduler_plugin.dashboard.cost_reports import CostReports
from scheduler_plugin.dashboard.explanation import database_explanation
from scheduler_plugin.dashboard.sources.http_sources import Sources
from scheduler_plugin.databases import database_object, database_url, is_pod, scope_of
from scheduler_plugin.history.core.samples import SECOND
from scheduler_plugin.history.ports import History, HistoryError, Period

TIMEOUT: Final = Seconds(5.0)
AT_ONCE: Final = 16
"""Maximum number of concurrent queries, and half of them for one namespace, whose agents may never respond."""
POINTS: Final = 400
"""Approximate maximum number of points of a chart."""
MOST_DECISIONS: Final = 400
MOST_MOVES: Final = 100
OF_THE_VM_ALONE: Final = frozenset(
    {"vm", "leading", "mayMove", "staysBecause", "unreadableConstraints"}
    | {"refusedTargets", "problems", "migrations", "pods"}
)
"""Parts of the scheduler's explanation of a database that do not mention other namespaces."""


@dataclass(slots=True)
class DetailQueries:
    """Queries the API server, the scheduler and agents, few at a time, so that users cannot overload them.

    If ``reads_events``, API calls have the user's own permissions, so the user may see events.
    """

    api: KubernetesApi
    sources: Sources
    clock: Clock
    reports: CostReports
    history: History | None = None
    reads_events: bool = False
    _turns: FairSlots = field(default_factory=lambda: FairSlots(AT_ONCE))

    async def of_vm(self, name: ObjectName, visibility: VisibilityFilter) -> Json | None:
        """The sentences of ``autoscale explain`` with their sources; None if the user cannot see such a database.

        ``warnings`` says whether Kubernetes' warnings are included.
        """
        kind, stored = database_object(name)
        # Without a name the path would be the collection's.
        if not stored.name or not visibility.sees(scope_of(name)):
            return None
        async with self._turns.slot(stored.namespace):
            try:
                path = kind.path(stored.namespace, stored.name)
                # The object first, because it has the agent's address and the UID for its events.
                vm = dict(await self.api.call(ApiCall("GET", path, TIMEOUT)))
            except ApiError:
                return None
            if is_pod(vm) and not is_pod_database(vm):
                return None
            from_scheduler = self.sources.of_scheduler(f"/explain/{database_url(name)}")
            agent, scheduler, events = await asyncio.gather(self.sources.of_vm(vm), from_scheduler, self._events(vm))
        if scheduler is not None and not visibility.has_all:
            # The user has no cluster-wide access, and other parts may mention databases of others.
            scheduler = {key: part for key, part in scheduler.items() if key in OF_THE_VM_ALONE}
        sentences = list(database_explanation(vm, agent, scheduler, events or ()))
        return {"story": sentences, "agent": agent, "scheduler": scheduler, "warnings": events is not None}

    async def _events(self, vm: Json) -> list[Json] | None:
        # On a cluster API calls have the page's permissions, not the user's.
        if not self.reads_events:
            return None
        # By UID, because an earlier object may have had this name.
        path, about = EVENTS.path(name_of(vm).namespace), {"fieldSelector": f"involvedObject.uid={uid_of(vm)}"}
        try:
            return items(await self.api.call(ApiCall("GET", path, TIMEOUT, about)), "items")
        except ApiError:
            return None

    async def past_of(self, name: ObjectName, visibility: VisibilityFilter, seconds: int) -> Json | None:
        """History of a database over the last ``seconds``, empty if none is kept.

        None if the user cannot see such a database.
        """
        if not visibility.sees(scope_of(name)):
            return None
        if self.history is None:
            return past([], [])
        now = round(self.clock.wall() * SECOND)
        period = Period(now - seconds * SECOND, now)
        try:
            async with self._turns.slot(name.namespace):
                spans = await self.history.vm_series(name, period, max(SECOND, seconds * SECOND // POINTS))
                decisions = await self.history.decisions(name, period, MOST_DECISIONS)
                moves = await self.history.moves(name, period, MOST_MOVES)
        # An unreadable history is shown as empty, so that the rest of the page works.
        except HistoryError:
            return past([], [])
        return past(spans, decisions, moves)

    async def of_group(self, kind: str, name: ObjectName, visibility: VisibilityFilter) -> Json | None:
        """The groups program's response; None if the user cannot see such a group, or there is no response."""
        if not visibility.sees(Scope(name.namespace)):
            return None
        path = "/".join(escaped(part) for part in ("explain", name.namespace, kind, name.name))
        async with self._turns.slot(name.namespace):
            return await self.sources.of_groups(f"/{path}")

    async def of_settings(self, visibility: VisibilityFilter) -> Json | None:
        """The scheduler's present settings, for users who may list all VMs."""
        if not visibility.has_all_vms:
            return None
        async with self._turns.slot(""):
            return await self.sources.of_scheduler("/settings")
