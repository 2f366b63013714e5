"""Parts of a test: the control plane, the cluster's objects, and our programs with their own connections."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

import httpx2 as httpx

from protocol.names import TOKEN_AUDIENCE
from protocol.units import Resources
from tests.kubernetes.failing.bare_control_plane import BareControlPlane
from tests.kubernetes.failing.faulty_proxy import FaultyProxy, faulty_proxy
from tests.kubernetes.failing.fleet import Fleet, Obj, Vm
from tests.kubernetes.failing.obedient_guest import Guest, guest
from tests.kubernetes.failing.our_programs import (
    Controller,
    Identity,
    NodeAgent,
    Scheduler,
    agent,
    controller,
    identity,
    node_agent,
    scheduler,
)
from tests.kubernetes.failing.permit_asker import SMALL, Asker


@dataclass(frozen=True, slots=True)
class Stage:
    """All that is started through it ends with the story, in the opposite order."""

    plane: BareControlPlane
    fleet: Fleet
    folder: Path
    stack: AsyncExitStack
    numbers: count[int] = field(default_factory=count)

    async def ready(self) -> None:
        """Returns once the control plane answers. Meanwhile all ways work as they should."""
        await asyncio.to_thread(self.plane.ready)

    async def way(self) -> FaultyProxy:
        """Another way to the API server, which does nothing wrong yet."""
        return await self.stack.enter_async_context(faulty_proxy(self.plane))

    async def scheduler(self, way: FaultyProxy, ahead: float = 0.0) -> Scheduler:
        """One that has read the cluster; its calendar is this many seconds ``ahead``."""
        known = await self._identity(way, "kube-system/autoscaling-scheduler")
        return await self.stack.enter_async_context(scheduler(known, ahead))

    async def agent(self, way: FaultyProxy, ours: Scheduler, vm: Vm, size: Resources = SMALL) -> Guest:
        """The agent of a VM, and its guest."""
        made = await self.stack.enter_async_context(guest(self.fleet, vm, size))
        known = await self._identity(way, "default/vm-agent", await self.fleet.pod(vm))
        self.stack.enter_context(agent(known, vm, made, way, ours))
        return made

    async def node_agent(self, way: FaultyProxy, ours: Scheduler, vms: Sequence[Vm]) -> tuple[NodeAgent, list[Guest]]:
        """The agent of the node of ``vms``, and their guests, all of which say what the first one says."""
        guests = [await self.stack.enter_async_context(guest(self.fleet, vm, SMALL)) for vm in vms]
        pod = await self.fleet.agent_pod(vms[0].node)
        known = await self._identity(way, "kube-system/autoscaling-agent", pod)
        token = await self.fleet.token("kube-system", "autoscaling-agent", TOKEN_AUDIENCE, pod)
        (known.folder / "scheduler-token").write_text(token)
        found = await self.stack.enter_async_context(node_agent(known, vms[0].node, guests[0], way, ours))
        return found, guests

    async def neonvm(self, way: FaultyProxy, ahead: float = 0.0) -> Controller:
        """A replica of the NeonVM controller."""
        known = await self._identity(way, "kube-system/neonvm-controller")
        return await self.stack.enter_async_context(controller(known, "deploy.neonvm.service", ahead))

    async def groups(self, way: FaultyProxy, ahead: float = 0.0) -> Controller:
        """A replica of autoscale-groups."""
        known = await self._identity(way, "kube-system/autoscaling-groups")
        return await self.stack.enter_async_context(controller(known, "scheduler_plugin.groups", ahead))

    def asker(self, ours: Scheduler, vm: Vm) -> Asker:
        """One that asks for the permits of a VM."""
        return Asker(vm, ours.agents, ours.http, SMALL)

    async def _identity(self, way: FaultyProxy, account: str, pod: Obj | None = None) -> Identity:
        namespace, _, name = account.partition("/")
        token = await self.fleet.token(namespace, name, pod=pod)
        return identity(self.folder / f"{next(self.numbers)}-{name}", self.plane, way, token)


@asynccontextmanager
async def stage(plane: BareControlPlane, folder: Path) -> AsyncIterator[Stage]:
    """One whose control plane runs, also afterwards, and whose cluster is empty again then."""
    headers = {"Authorization": f"Bearer {plane.pki.admin_token}"}
    async with faulty_proxy(plane) as way, AsyncExitStack() as stack:
        limits = httpx.Limits(max_connections=64, max_keepalive_connections=16)
        http = httpx.AsyncClient(
            base_url=way.url, verify=plane.client_tls(), headers=headers, trust_env=False, timeout=20.0, limits=limits
        )
        fleet = Fleet(await stack.enter_async_context(http))
        made = Stage(plane, fleet, folder, stack)
        stack.push_async_callback(fleet.clear)
        stack.push_async_callback(made.ready)
        stack.callback(plane.revive)
        yield made
