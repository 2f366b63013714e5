"""A running guest that travels between two nodes, and a client that notices every standstill."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from deploy.neonvm.guests.qemu_guests import QemuGuests
from deploy.neonvm.network.chooser import NetworkKind
from deploy.neonvm.ports import Guest, GuestSpec
from deploy.neonvm.transfer_terms import TransferInfo, TransferLimits
from protocol.messages import ObjectName
from protocol.runtime.clock import SystemClock
from protocol.units import Bytes, Seconds
from scripts.database_client import DatabaseSession
from tests.slowness import Slowness
from tests.vm.guests import MIB, PASSWORD, Booted, booted, with_password
from vm_image.build import ensure_image

LIMITS = TransferLimits(downtime=Seconds(0.02), bandwidth=Bytes(1024 * MIB), timeout=Seconds(60.0))
PROBE_SECONDS = 0.02


@dataclass
class Journey:
    """A guest on node ``node-1`` or ``node-2``; ``guest`` is where it is now, ``progress`` what its moves said."""

    home: Booted
    guests: QemuGuests
    guest: Guest
    spec: GuestSpec
    hops: int = 0
    progress: list[TransferInfo] = field(default_factory=list)

    async def target(self, **changes: object) -> tuple[Guest, GuestSpec]:
        """A guest that receives in a new pod on the other node; ``changes`` to its spec make it another machine."""
        self.hops += 1
        pod = ObjectName("default", f"db-pod-{self.hops}")
        place = await self.home.network.add_pod(f"node-{self.hops % 2 + 1}", pod)
        spec = replace(self.spec, pod=pod, network=place, **changes)  # type: ignore[arg-type]  # fields of a spec
        guest = await with_password(self.guests.create(spec))
        await guest.receive()
        return guest, spec

    async def hop(self) -> TransferInfo:
        """Moves the guest to the other node and removes the pod it came from."""
        target, spec = await self.target()
        try:
            info = await self.guest.send(target, LIMITS, self.progress.append)
        except BaseException:
            await self.drop(target, spec)
            raise
        await self.drop(self.guest, self.spec)
        self.guest, self.spec = target, spec
        return info

    async def drop(self, guest: Guest, spec: GuestSpec) -> None:
        """Ends a guest and removes its pod."""
        await guest.stop()
        await self.home.network.remove_pod(spec.pod)

    def here(self) -> Booted:
        """The guest with all that is around it now."""
        return Booted(self.guest, self.spec, self.home.network)


@asynccontextmanager
async def travelling(kind: NetworkKind, state_dir: Path) -> AsyncIterator[Journey]:
    """A booted guest with a database, and a second node to which it can migrate."""
    async with booted(kind, state_dir) as home:
        await home.network.add_node("node-2")
        image = await asyncio.to_thread(ensure_image, lambda _: None)
        guests = await QemuGuests.prepare(image, home.network, SystemClock())
        await home.pgbench("--initialize", "--quiet", "--scale=1")
        journey = Journey(home, guests, home.guest, home.spec)
        try:
            yield journey
        finally:
            await journey.guest.stop()


@dataclass
class Probe:
    """A client that asks the database for nothing, every 20 ms, over one connection. ``longest`` is its longest wait in
    seconds; ``slow`` knows at the end how slow the machine was meanwhile.
    """

    slow: Slowness
    longest: float = 0.0


@asynccontextmanager
async def probing(journey: Journey) -> AsyncIterator[Probe]:
    """Probes the guest's database through the flat network until the end of the block; the connection must hold."""
    port = await journey.home.network.expose(journey.spec.address, 5432)
    session, probe = await DatabaseSession.open("127.0.0.1", port, PASSWORD), Probe(Slowness())
    task = asyncio.create_task(_probe(session, probe))
    try:
        with probe.slow:
            yield probe
        assert not task.done(), f"the probe's connection has ended: {task}"
    finally:
        task.cancel()
        await asyncio.wait((task,))
        session.close()


async def _probe(session: DatabaseSession, probe: Probe) -> None:
    while True:
        began = time.monotonic()
        session.begin(";")
        await session.finished()
        took = time.monotonic() - began
        probe.longest = max(probe.longest, took)
        await asyncio.sleep(max(0.0, PROBE_SECONDS - took))
