"""Traffic to a VM of a local cluster, frame by frame and segment by segment, seen from both of its ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Final

import httpx2 as httpx

from deploy.neonvm.addressing import METRICS_PORT
from deploy.neonvm.network import netns
from deploy.neonvm.network.commands import run
from deploy.neonvm.network.namespaces import switch_of
from protocol.kubernetes.objects import text
from protocol.kubernetes.resources import VIRTUAL_MACHINES
from protocol.messages import ObjectName
from protocol.runtime.clock import Clock
from scripts.autoscale.site import Site
from scripts.bench.frames.echoes import Echoes
from scripts.bench.frames.frame_echo import CLOSED_PORT, echoing, knocking
from scripts.bench.frames.on_the_wire import OnTheWire
from scripts.bench.frames.tcp_counters import TcpCounters, of_exporter, of_proc

_PAGES: Final = ("/proc/net/snmp", "/proc/net/netstat")
_COLLECTOR: Final = {"collect[]": "netstat"}
_SECONDS: Final = 10.0


@dataclass(frozen=True, slots=True)
class VmWire:
    """``switch`` is the namespace in which clients' connections begin; ``metrics`` is the guest's exporter."""

    echoes: Echoes
    switch: str | None
    metrics: str

    async def counted(self) -> tuple[TcpCounters | None, TcpCounters]:
        """Counters of the client's kernel and the guest's. Raises ``NetworkError`` and ``httpx2.HTTPError``."""
        client = None
        if self.switch is not None:
            client = of_proc(await run("nsenter", f"--net={netns.RUN / self.switch}", "cat", *_PAGES))
        async with httpx.AsyncClient(timeout=_SECONDS, trust_env=False) as http:
            return client, of_exporter((await http.get(self.metrics, params=_COLLECTOR)).text)

    async def since(self, before: tuple[TcpCounters | None, TcpCounters]) -> OnTheWire:
        """All that was seen, with the counters since ``before``. Raises as ``counted``."""
        client, guest = await self.counted()
        if client is not None and before[0] is not None:
            client = client.since(before[0])
        return OnTheWire(self.echoes, client, guest.since(before[1]))


@asynccontextmanager
async def vm_wire(site: Site, vm: ObjectName, cluster: str, clock: Clock) -> AsyncIterator[VmWire]:
    """Ask the VM for echoes while the block lasts. Raises ``SiteError`` and ``OSError``."""
    vm_object = await site.client.get(VIRTUAL_MACHINES, vm)
    switch = await asyncio.to_thread(switch_of, cluster)
    async with AsyncExitStack() as stack:
        host, port = await stack.enter_async_context(site.into_vm(vm_object, METRICS_PORT))
        # A hub's gateway passes no ICMP on: there a closed port is knocked at.
        if switch is not None:
            raw, address = netns.icmp_in(switch), text(vm_object, "status", "extraNetIP")
            echoes = await stack.enter_async_context(echoing(raw, address, clock))
        else:
            place = await stack.enter_async_context(site.into_vm(vm_object, CLOSED_PORT))
            echoes = await stack.enter_async_context(knocking(*place, clock))
        yield VmWire(echoes, switch, f"http://{host}:{port}/metrics")
