"""Loopback ports that forward to a demonstration's VMs, for its loads and clients."""

from __future__ import annotations

from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from deploy.local.cluster.control import EXPOSE_SERVICE, ask_cluster
from deploy.local.cluster.folder import ClusterFolder
from deploy.neonvm.addressing import DAEMON_PORT
from protocol.kubernetes.objects import Json, items, name_of, text
from protocol.kubernetes.resources import VIRTUAL_MACHINES, VM_GROUPS
from protocol.messages import ObjectName
from protocol.runtime.clock import Clock
from scheduler_plugin.databases import is_pod
from scripts.autoscale.demonstration.group_scenario import GROUP, PRIMARY
from scripts.autoscale.demonstration.loads import Load, ReplicaLoad, read_in_waves, share_demand, simulated_load
from scripts.autoscale.demonstration.pgbench import DatabaseServer, prepare, run_load, run_load_with_sums
from scripts.autoscale.demonstration.vm_clients import RunClients, no_clients, pgbench_clients
from scripts.autoscale.demonstration.vm_database import database_of
from scripts.autoscale.site import Site

_CLIENTS: Final = 8
_SCALE: Final = 2
_SCALE_OF_OTHERS: Final = 1
_DEMAND: Final = {"cpu": 3.4, "mem": "500Mi"}


@dataclass(frozen=True, slots=True)
class PortForwards:
    """Creates loads and clients through port forwards, which stay open as long as ``stack``."""

    cluster: str
    site: Site
    clock: Clock
    stack: AsyncExitStack
    is_simulated: bool

    async def load_of(self, vm: Json) -> Load:
        """The load generator of a running VM or pod; creates its tables."""
        if self.is_simulated:
            return partial(simulated_load, partial(self._control, name_of(vm)), self.clock, _DEMAND)
        server = await self._postgres(vm)
        await prepare(server, _SCALE)
        return partial(run_load_with_sums if is_pod(vm) else run_load, server, _CLIENTS)

    async def clients_of(self, vm: Json) -> RunClients:
        """The clients of a running neighbour; creates their tables."""
        if self.is_simulated:
            return partial(no_clients, self.clock)
        server = await self._postgres(vm)
        await prepare(server, _SCALE_OF_OTHERS)
        return partial(pgbench_clients, server, self.clock)

    async def read_load(self) -> ReplicaLoad:
        """The load generator of the replicas of a serving group; creates its tables."""
        if self.is_simulated:
            return partial(share_demand, self._serving, self.clock)
        folder = ClusterFolder.of(self.cluster)
        # A Service's address is reachable only inside the cluster, which exposes it here.
        endpoint = await ask_cluster(folder, EXPOSE_SERVICE, f"{GROUP}-read")
        primary = await self.site.client.get(VIRTUAL_MACHINES, PRIMARY)
        server = await self._postgres(primary)
        await prepare(server, _SCALE_OF_OTHERS)
        # Replicas stream the primary's roles, so the same password is valid.
        return partial(read_in_waves, replace(server, host="127.0.0.1", port=endpoint.port))

    async def _serving(self) -> list[str]:
        """Demand endpoints of the serving simulated replicas."""
        group = await self.site.client.get(VM_GROUPS, GROUP)
        names = [text(member, "name") for member in items(group, "status", "members") if member.get("serving") is True]
        return [await self._control(ObjectName(GROUP.namespace, name)) for name in names]

    async def _control(self, vm: ObjectName) -> str:
        """Demand endpoint of the VM's simulated guest, in its current pod."""
        # Looked up for each request, because it changes when the VM migrates.
        virtual_machine = await self.site.client.get(VIRTUAL_MACHINES, vm)
        target = text(virtual_machine, "status", "podIP")
        exposed = await ask_cluster(ClusterFolder.of(self.cluster), "expose", target, DAEMON_PORT)
        return f"http://127.0.0.1:{exposed.port}"

    async def _postgres(self, vm: Json) -> DatabaseServer:
        return await self.stack.enter_async_context(database_of(self.site, vm))
