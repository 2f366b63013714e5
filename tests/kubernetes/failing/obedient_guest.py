"""A guest for a real agent: it has metrics, and the size that its object orders."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import httpx2 as httpx

from deploy.neonvm.simulated.simulated_load import Demand, Load
from deploy.neonvm.simulated.simulated_model import SimulatedKernel, exposition
from protocol.units import Bytes, Resources, Seconds
from protocol.virtual_machine import parse_virtual_machine
from tests.kubernetes.failing.fleet import MERGE, VMS, Fleet, Vm, permit_on


@dataclass(slots=True)
class Guest:
    """The guest of a VM and what obeys its object: it has the size that the object orders, and says so in the status.

    ``beyond`` are the sizes that it had although its object permitted less.
    """

    fleet: Fleet
    vm: Vm
    kernel: SimulatedKernel
    born: float
    least: Resources
    port: int = 0
    beyond: list[str] = field(default_factory=list)
    connections: dict[asyncio.StreamWriter, asyncio.Task[Any] | None] = field(default_factory=dict)

    @property
    def metrics_url(self) -> str:
        """URL of its node_exporter."""
        return f"http://127.0.0.1:{self.port}/metrics"

    async def has(self, size: Resources) -> bool:
        """True if it has at least ``size``."""
        return size.within(self.kernel.requested)

    async def was_below(self, size: Resources) -> bool:
        """True if it has had less than ``size`` since this was asked last."""
        found, self.least = self.least, self.kernel.requested
        return not size.within(found)

    def load(self, cores: float) -> None:
        """So many vCPUs are wanted from now on."""
        self._advance()
        self.kernel = self.kernel.under(Demand(cores, Bytes.parse("1Gi")))

    def _advance(self) -> None:
        self.kernel = self.kernel.advanced(Seconds(time.monotonic() - self.born))

    async def obey(self) -> None:
        """Follows the object forever."""
        while True:
            with suppress(httpx.HTTPError):  # while the API server is away the guest stays as it is
                await self._obey_once()
            await asyncio.sleep(0.2)

    async def _obey_once(self) -> None:
        path = f"{VMS}/{self.vm.name}"
        response = await self.fleet.http.get(path)
        if not response.is_success:
            return
        found = response.json()
        use = parse_virtual_machine(found).use
        if not use.within(permit_on(found).at_least(self.kernel.size)):
            self.beyond.append(f"{use} with a permit of {permit_on(found)}")
        self.least = self.least.at_most(use)
        if use != self.kernel.requested:
            self._advance()
            self.kernel = self.kernel.resized(use)
        status = {"cpus": use.cpu.quantity(), "memorySize": use.mem.quantity()}
        if found["status"] != found["status"] | status:
            await self.fleet.http.patch(f"{path}/status", json={"status": status}, headers=MERGE)

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection to its node_exporter."""
        self.connections[writer] = asyncio.current_task()
        try:
            await reader.readuntil(b"\r\n\r\n")
            self._advance()
            page = exposition(self.kernel, 0.0, ()).encode()
            head = f"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: {len(page)}\r\n\r\n"
            writer.write(head.encode() + page)
            await writer.drain()
        except (OSError, asyncio.IncompleteReadError):
            pass  # hung up
        finally:
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()
            del self.connections[writer]

    async def hang_up(self) -> None:
        """Ends the connections of scrapes, or the event loop might end before they do."""
        # One that was accepted just now is answered in one of the loop's next turns.
        for _ in range(3):
            await asyncio.sleep(0)
        for writer in self.connections:
            writer.transport.abort()
        await asyncio.gather(*(task for task in self.connections.values() if task is not None), return_exceptions=True)


@asynccontextmanager
async def guest(fleet: Fleet, vm: Vm, size: Resources) -> AsyncIterator[Guest]:
    """One that runs."""
    kernel = SimulatedKernel.booted(Load.constant(0.1, Bytes.parse("1Gi")), size, 8)
    made = Guest(fleet, vm, kernel, time.monotonic(), size)
    server = await asyncio.start_server(made.answer, "127.0.0.1", 0)
    made.port = server.sockets[0].getsockname()[1]
    obeying = asyncio.create_task(made.obey())
    try:
        yield made
    finally:
        obeying.cancel()
        server.close()
        await made.hang_up()
        await asyncio.gather(obeying, return_exceptions=True)
