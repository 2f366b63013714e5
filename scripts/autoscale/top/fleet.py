"""Follows a cluster for ``autoscale top``: watches VMs, pods and migrations, and queries the scheduler and agents."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from deploy.kube.informer import Informer, ObjectChange
from protocol.kubernetes.api import ApiError, Tolerating
from protocol.kubernetes.objects import Json, items, name_of, text
from protocol.kubernetes.refusals import RefusalKind
from protocol.kubernetes.resources import MIGRATIONS, VIRTUAL_MACHINES
from protocol.messages import ObjectName
from protocol.pod_database import database_of, is_pod_database
from protocol.runtime.clock import Clock
from scheduler_plugin.dashboard.core.rows import PENDING
from scheduler_plugin.dashboard.core.states import ConditionTimes
from scheduler_plugin.databases import database_in, database_object
from scripts.autoscale.demonstration.moves import ENDED
from scripts.autoscale.demonstration.waiting import run_all
from scripts.autoscale.explain import explain_database
from scripts.autoscale.migrate import is_under_way, keeps_connections, migration_of
from scripts.autoscale.site import SCHEDULER, Site, SiteSources, agent_response
from scripts.autoscale.terminal.visible import visible
from scripts.autoscale.top.columns import TableRow
from scripts.autoscale.top.rows import by_vm, node_line, phase_of, vm_row

_AT_ONCE: Final = 16
"""Number of agents that are queried at the same time."""
_IN_TURN: Final = 32
"""Number of agents of VMs not on the screen that each refresh queries."""


@dataclass(frozen=True, slots=True)
class FleetSnapshot:
    """State of a cluster: rows in no order, and error messages."""

    vms: tuple[TableRow, ...] = ()
    nodes: tuple[TableRow, ...] = ()
    troubles: tuple[str, ...] = ()


class FleetReader:
    """Reads the databases and nodes of a cluster; run ``run`` in a task. ``namespace`` is empty for all."""

    def __init__(self, site: Site, clock: Clock, namespace: str = "") -> None:
        self._site = site
        self._namespace = namespace
        self._vms = Informer(site.client, VIRTUAL_MACHINES, clock)
        self._sources = SiteSources(site, clock)
        self._databases: dict[ObjectName, Json] = {}
        self._sources.pods.listen(self._pod_changed)
        self._migrations = Informer(site.client, MIGRATIONS, clock)
        self._agents: dict[ObjectName, Json] = {}
        self._nodes: list[tuple[Json, dict[str, Json]]] = []
        self._rows: dict[ObjectName, tuple[tuple[Json, Json, Json, Json | None, bool], TableRow]] = {}
        self._clock = clock
        self._pending = ConditionTimes()
        self._queue: list[ObjectName] = []

    @property
    def title(self) -> str:
        """The name of the cluster."""
        return self._site.title

    async def run(self) -> None:
        """Watches until cancelled."""
        await run_all(self._vms.run(), self._sources.pods.run(), self._migrations.run())

    async def everything(self) -> FleetSnapshot:
        """Returns a snapshot after querying all agents. Raises like ``ApiClient.list``."""
        await self._vms.refresh()
        await self._sources.pods.refresh()
        with Tolerating(RefusalKind.NOT_FOUND):  # migrations may not be installed
            await self._migrations.refresh()
        return await self._read(list(self._named()))

    async def read(self, on_screen: Sequence[str]) -> FleetSnapshot:
        """Returns a snapshot after querying the agents of the databases on the screen, and some others."""
        named = self._named()
        # A VM on the screen may have been deleted since.
        visible_vms = [name for name in map(database_in, on_screen) if name in named]
        return await self._read([*visible_vms, *self._next_invisible(named, set(visible_vms))])

    async def _read(self, to_query: Sequence[ObjectName]) -> FleetSnapshot:
        trouble, scheduler, _ = await asyncio.gather(
            self._api_trouble(), self._site.of_scheduler("/nodes"), self._query_agents(to_query)
        )
        if scheduler is not None:
            # Otherwise the last nodes stay.
            self._update_nodes(items(scheduler, "nodes"))
        troubles = (trouble, "" if scheduler is not None else self._scheduler_trouble())
        lines = tuple(node_line(node) for node, _ in self._nodes)
        return FleetSnapshot(self._vm_rows(), lines, tuple(message for message in troubles if message))

    def _update_nodes(self, nodes: Sequence[Json]) -> None:
        before = {text(node, "name"): (node, pods) for node, pods in self._nodes}
        self._nodes = []
        for node in nodes:
            previous = before.get(text(node, "name"))
            # An unchanged node keeps its objects, so that the rows of its VMs need not be rebuilt.
            self._nodes.append(previous if previous is not None and previous[0] == node else (node, by_vm(node)))

    def _scheduler_trouble(self) -> str:
        reason = self._site.request_errors.get(SCHEDULER, "")
        return f"The scheduler does not respond{reason and ': '}{visible(reason)}{'' if reason else '.'}"

    async def _api_trouble(self) -> str:
        try:
            # A watch may hang without an error, so make a small request each time.
            await self._site.client.revision(VIRTUAL_MACHINES)
        except ApiError as error:
            return f"The API server does not respond: {visible(str(error))}"
        return ""

    def _named(self) -> Mapping[ObjectName, Json]:
        named = {**self._vms.objects, **self._databases}
        if not self._namespace:
            return named
        return {name: vm for name, vm in named.items() if name.namespace == self._namespace}

    def _next_invisible(self, named: Mapping[ObjectName, Json], on_screen: set[ObjectName]) -> list[ObjectName]:
        if not self._queue:
            self._queue = list(named)
        # In turn, so that 10,000 VMs cost no more than 100.
        next_names, self._queue = self._queue[:_IN_TURN], self._queue[_IN_TURN:]
        return [name for name in next_names if name in named and name not in on_screen]

    def _pod_changed(self, change: ObjectChange) -> None:
        name = database_of(change.name)
        if change.after is not None and is_pod_database(change.after):
            self._databases[name] = change.after
        else:
            self._databases.pop(name, None)

    async def _query_agents(self, names: Sequence[ObjectName]) -> None:
        pods, limit, named = self._sources.index, asyncio.Semaphore(_AT_ONCE), self._named()

        async def query(name: ObjectName) -> None:
            async with limit:
                vm = named.get(name)
                # Empty if the agent does not respond: an old explanation would look current.
                self._agents[name] = (vm and await agent_response(self._site, vm, pods)) or {}

        await asyncio.gather(*map(query, names))

    def _vm_rows(self) -> tuple[TableRow, ...]:
        """The rows of all databases."""
        reserved = {vm: pod for _, pods in self._nodes for vm, pod in pods.items()}
        named = self._named()
        moving = {
            ObjectName(name.namespace, text(migration, "spec", "vmName")): migration
            for name, migration in self._migrations.objects.items()
            if text(migration, "status", "phase") not in ENDED
        }
        before, self._rows = self._rows, {}
        self._note_pending(named)
        for name, vm in named.items():
            is_waiting = self._pending.is_long(str(name), self._clock.now())
            inputs = (vm, self._agents.get(name, {}), reserved.get(str(name), {}), moving.get(name), is_waiting)
            previous = before.get(name)
            # Rebuild a row only if one of its inputs has changed: there may be 10,000 rows.
            row = (
                previous[1]
                if previous is not None and previous[0] == inputs
                else vm_row(*inputs[:4], is_waiting=is_waiting)
            )
            self._rows[name] = inputs, row
        return tuple(row for _, row in self._rows.values())

    def _note_pending(self, named: Mapping[ObjectName, Json]) -> None:
        now = self._clock.now()
        # Forget deleted VMs, in case one of the same name is created later.
        for key in self._pending.keys - set(map(str, named)):
            self._pending.update(key, now, is_so=False)
        for name, vm in named.items():
            self._pending.update(str(name), now, is_so=phase_of(vm) == PENDING)

    async def explain(self, vm: str) -> list[str]:
        """Explains the database's size like ``autoscale explain``, or returns the error."""
        try:
            sentences, _ = await explain_database(
                self._site, await self._site.client.get(*database_object(database_in(vm)))
            )
        except ApiError as error:
            return [visible(str(error))]
        return [visible(sentence) for sentence in sentences]

    def question(self, vm: str) -> str:
        """The question to confirm a migration of the VM, with its consequences."""
        virtual_machine = self._vms.get(database_in(vm)) or {}
        stays = "It keeps its address and connections."
        breaks = "It has no flat-network address: its connections will break."
        consequence = stays if keeps_connections(virtual_machine) else breaks
        node = visible(text(virtual_machine, "status", "node")) or "its node"
        return f"Migrate {vm} from {node} to another node that has room? {consequence}"

    async def move(self, vm: str) -> str:
        """Creates a migration as ``autoscale migrate`` does, and returns a message about it (S4.12)."""
        name = database_in(vm)
        if any(is_under_way(migration, name) for migration in self._migrations.objects.values()):
            return f"{vm} is already migrating."
        try:
            made = await self._site.client.create(MIGRATIONS, name.namespace, migration_of(name))
        except ApiError as error:
            return f"Cannot migrate {vm}: {visible(str(error))}"
        return f"Created migration {name_of(made)} of {vm}."
