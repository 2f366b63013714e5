"""A real guest whose disk is as slow as a cloud's beside its CPU, and an agent's core that follows it.

Rules that hold here:

- The agent's core, its reading of metrics, and the guest are the real ones. The scheduler grants everything at once.
- The host's page cache makes a guest's disk faster than any cloud's, and emulation makes its CPU much slower. So QEMU
  limits the reads of the disk, once the database is loaded.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from agent.adapters.exposition import COLLECTORS, read_sample
from agent.core.actions import AskScheduler, PatchVm
from agent.core.advance import advance
from agent.core.events import Answered, Event, Fault, Patched, Scraped, ScrapeFailed, Started, VmSeen
from agent.core.plan import plan
from agent.core.policy import Policy
from agent.core.state import State, begin
from agent.core.vm import Vm
from deploy.neonvm.network.chooser import LocalNetwork, NetworkKind, choose_network
from deploy.neonvm.ports import Guest, GuestError, GuestPhase, GuestSpec
from deploy.neonvm.qemu.machine import Hypervisor, Machine
from deploy.neonvm.qemu.qemu_guest import QemuGuests
from protocol.messages import ObjectName, PluginResponse
from protocol.runtime.clock import Clock, SystemClock
from protocol.units import Bytes, ComputeUnit, Instant, MilliCpu, Resources, Seconds
from protocol.virtual_machine import Bounds
from vm_image.build import ensure_image

MIB: Final = 1024**2
STEP: Final = Bytes(32 * MIB)
LEAST: Final = Bytes(256 * MIB)
MOST: Final = Bytes(640 * MIB)
CPU: Final = MilliCpu(1000)

_VM, _POD = ObjectName("default", "memory"), ObjectName("default", "memory-pod")
_BOOT: Final = Seconds(240.0)
_LOOK: Final = Seconds(2.0)
_READ: Final = "import sys, urllib.request as u; sys.stdout.buffer.write(u.urlopen(sys.argv[1], timeout=10).read())"


class _Watched:
    """A hypervisor that remembers the machine that it launched."""

    def __init__(self, inner: Hypervisor) -> None:
        self._inner = inner
        self.machine: Machine | None = None

    async def make_disk(self, disk: Path, base: Path) -> None:
        """See ``Hypervisor``."""
        await self._inner.make_disk(disk, base)

    async def launch(self, who: str, command: Callable[[int], Sequence[str]], log: Path) -> Machine:
        """See ``Hypervisor``."""
        self.machine = await self._inner.launch(who, command, log)
        return self.machine


@dataclass(slots=True)
class MemoryGuest:
    """A running guest with its database, and the port of this machine on which that answers."""

    guest: Guest
    spec: GuestSpec
    clock: Clock
    port: int
    description: str
    _watched: _Watched

    async def throttle(self, reads: int) -> None:
        """Lets the disk read so many times a second."""
        machine = self._watched.machine
        if machine is None:
            raise GuestError("the guest has not been started")
        limits = {"bps": 0, "bps_rd": 0, "bps_wr": 0, "iops": 0, "iops_rd": reads, "iops_wr": 0}
        await machine.call("block_set_io_throttle", {"device": "root", **limits})

    async def page(self) -> bytes:
        """What the guest's node_exporter says to a program in the pod."""
        query = "&".join(f"collect[]={name}" for name in COLLECTORS)
        url = f"{self.spec.network.metrics_url}?{query}"
        process = await asyncio.create_subprocess_exec(
            *self.spec.network.enter, sys.executable, "-c", _READ, url, stdout=asyncio.subprocess.PIPE
        )
        said, _ = await process.communicate()
        return said

    async def resize(self, size: Bytes) -> None:
        """Orders memory until the guest has it, for a minute at most: a busy guest gives it back bit by bit."""
        deadline = self.clock.now() + 60
        while (await self.guest.state()).mem != size and self.clock.now() < deadline:
            await self.guest.set_memory(size)


@asynccontextmanager
async def memory_guest(folder: Path) -> AsyncIterator[MemoryGuest]:
    """A guest of ``LEAST`` to ``MOST`` that has all of it."""
    image = await asyncio.to_thread(ensure_image, lambda line: print(line, file=sys.stderr))
    network: LocalNetwork = await choose_network(
        NetworkKind.AUTO, real_guests=True, cluster=f"bench-memory-{os.getpid()}"
    )
    clock = SystemClock()
    await network.up()
    try:
        await network.add_node("node-1")
        place, address = await network.add_pod("node-1", _POD), await network.vm_address(_VM)
        spec = GuestSpec(_VM, _POD, CPU, CPU, LEAST, MOST, MOST, address, place, folder)
        guests = await QemuGuests.prepare(image, network, clock)
        watched = _Watched(guests.hypervisor)
        guest = replace(guests, hypervisor=watched).create(spec)
        try:
            await guest.start()
            async with asyncio.timeout(_BOOT):
                while (await guest.state()).phase is not GuestPhase.RUNNING:
                    await clock.sleep(Seconds(0.2))
            yield MemoryGuest(guest, spec, clock, await network.expose(address, 5432), guests.description, watched)
        finally:
            await guest.stop()
    finally:
        await network.down()


@dataclass(slots=True)
class Follower:
    """The agent's core beside a real guest."""

    guest: MemoryGuest
    policy: Policy
    sizes: list[tuple[float, Bytes]] = field(default_factory=list)
    """When it ordered which size, in seconds of the clock."""
    state: State = field(init=False)
    _vm: Vm = field(init=False)

    def __post_init__(self) -> None:
        size = Resources(CPU, MOST)
        self._vm = Vm(Bounds(Resources(CPU, LEAST), size), size, size, STEP, 1)
        self.state = begin(_POD, self.policy, self._now, 0.0, 1)
        self._take(VmSeen(self._vm))

    async def follow(self, seconds: float) -> None:
        """Looks and acts for so many seconds."""
        end = self._now + seconds
        while self._now < end:
            await self._look()
            await self._act()
            await self.guest.clock.sleep(_LOOK)

    @property
    def _now(self) -> Instant:
        return self.guest.clock.now()

    async def _look(self) -> None:
        mem = (await self.guest.guest.state()).mem
        if mem != self._vm.actual.mem:
            self._vm = replace(self._vm, actual=Resources(CPU, mem), version=self._vm.version + 1)
            self._take(VmSeen(self._vm))
        if self._vm.unfinished_shrink or mem < self._vm.use.mem:
            await self.guest.guest.set_memory(self._vm.use.mem)
        page = await self.guest.page()
        self._take(Scraped(read_sample(page)) if page else ScrapeFailed(Fault.GUEST, "no page"))

    async def _act(self) -> None:
        while actions := plan(self.state, self._now).actions:
            for action in actions:
                self._take(Started(action))
                if isinstance(action, AskScheduler):
                    unit = ComputeUnit(CPU, STEP)
                    self._take(Answered(PluginResponse(action.request.resources, unit, False)))
                else:
                    await self._patch(action)

    async def _patch(self, patch: PatchVm) -> None:
        self._vm = replace(self._vm, use=patch.target, version=self._vm.version + 1)
        self.sizes.append((self._now, patch.target.mem))
        self._take(Patched(self._vm))
        await self.guest.guest.set_memory(patch.target.mem)

    def _take(self, event: Event) -> None:
        advance(self.state, event, self._now, 0.0)
