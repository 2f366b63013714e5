"""A real guest whose disk is as slow as a cloud's beside its CPU.

The host's page cache makes a guest's disk faster than any cloud's, and emulation makes its CPU much slower. So QEMU
limits the reads of the disk, once the database is loaded.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from agent.adapters.exposition import COLLECTORS
from deploy.neonvm.guests.qemu_guests import QemuGuests
from deploy.neonvm.network.chooser import LocalNetwork, NetworkKind, choose_network
from deploy.neonvm.password import PasswordGuest
from deploy.neonvm.ports import Guest, GuestError, GuestSpec
from deploy.neonvm.qemu.machine import Hypervisor, Machine
from protocol.messages import ObjectName
from protocol.runtime.clock import Clock, SystemClock
from protocol.units import Bytes, MilliCpu
from tests.vm.guests import until_running
from vm_image.build import ensure_image

MIB: Final = 1024**2
CPU: Final = MilliCpu(1000)
PASSWORD: Final = "memory"
"""Of a database that exists only during one run, on this machine."""

_VM, _POD = ObjectName("default", "memory"), ObjectName("default", "memory-pod")
# A separate program, because it runs in the pod's network namespace.
_READ: Final = "import sys, urllib.request as u; sys.stdout.buffer.write(u.urlopen(sys.argv[1], timeout=10).read())"


@dataclass(frozen=True, slots=True)
class GuestSizes:
    """The memory that a guest may have, and the steps in which an agent changes it."""

    least: Bytes
    most: Bytes
    step: Bytes


class _Watched:
    """A hypervisor that remembers the machine that it launched."""

    def __init__(self, inner: Hypervisor) -> None:
        self._inner = inner
        self.machine: Machine | None = None

    async def make_disk(self, disk: Path, base: Path) -> None:
        """See ``Hypervisor``."""
        await self._inner.make_disk(disk, base)

    async def launch(
        self, who: str, command: Callable[[int], Sequence[str]], log: Path, inherit: Sequence[int] = ()
    ) -> Machine:
        """See ``Hypervisor``."""
        self.machine = await self._inner.launch(who, command, log, inherit)
        return self.machine


@dataclass(slots=True)
class MemoryGuest:
    """A running guest with its database, and the port of this machine on which the database answers."""

    guest: Guest
    sizes: GuestSizes
    spec: GuestSpec
    clock: Clock
    port: int
    description: str
    _watched: _Watched

    async def throttle(self, reads: int) -> None:
        """Limits the reads of the disk to this many a second; 0 is no limit. Raises ``GuestError``."""
        machine = self._watched.machine
        if machine is None:
            raise GuestError("the guest has not been started")
        # QMP requires all six limits; 0 is no limit.
        limits = {"bps": 0, "bps_rd": 0, "bps_wr": 0, "iops": 0, "iops_rd": reads, "iops_wr": 0}
        await machine.call("block_set_io_throttle", {"device": "root", **limits})

    async def page(self) -> bytes:
        """Page of the guest's node_exporter, read from within the pod."""
        query = "&".join(f"collect[]={name}" for name in COLLECTORS)
        url = f"{self.spec.network.metrics_url}?{query}"
        process = await asyncio.create_subprocess_exec(
            *("setpriv", "--pdeathsig", "KILL", "--", *self.spec.network.enter, sys.executable, "-c", _READ, url),
            stdout=asyncio.subprocess.PIPE,
        )
        output, _ = await process.communicate()
        return output


@asynccontextmanager
async def memory_guest(folder: Path, sizes: GuestSizes) -> AsyncIterator[MemoryGuest]:
    """A running guest that may have ``sizes`` and begins with the most."""
    image = await asyncio.to_thread(ensure_image, lambda line: print(line, file=sys.stderr))
    network: LocalNetwork = await choose_network(
        NetworkKind.AUTO, real_guests=True, cluster=f"test-memory-{os.getpid()}"
    )
    clock = SystemClock()
    await network.up()
    try:
        await network.add_node("node-1")
        place, address = await network.add_pod("node-1", _POD), await network.vm_address(_VM)
        spec = GuestSpec(_VM, _POD, CPU, CPU, sizes.least, sizes.most, sizes.most, address, place, folder)
        guests = await QemuGuests.prepare(image, network, clock)
        # ``Guest`` does not expose its machine, which ``throttle`` needs for QMP commands.
        watched = _Watched(guests.hypervisor)
        guest = replace(guests, hypervisor=watched).create(spec)
        try:
            if isinstance(guest, PasswordGuest):
                await guest.set_password(PASSWORD)
            await guest.start()
            await until_running(guest)
            port = await network.expose(address, 5432)
            yield MemoryGuest(guest, sizes, spec, clock, port, guests.description, watched)
        finally:
            await guest.stop()
    finally:
        await network.down()
