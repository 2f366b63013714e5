"""A booted real guest on a real network, and tools that observe it from outside."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from deploy.neonvm.guests.qemu_guest import QemuGuest
from deploy.neonvm.guests.qemu_guests import QemuGuests
from deploy.neonvm.network.chooser import LocalNetwork, NetworkKind, choose_network
from deploy.neonvm.ports import Guest, GuestError, GuestPhase, GuestSpec, PodNetwork
from protocol.messages import ObjectName
from protocol.runtime.clock import SystemClock
from protocol.units import Bytes, MilliCpu
from scripts.autoscale.demonstration.pgbench import DatabaseServer
from vm_image.build import ensure_image

VM, POD = ObjectName("default", "db"), ObjectName("default", "db-pod")
BOOT_SECONDS = 240
SETTLE_SECONDS = 180
COMMAND_SECONDS = 600
PASSWORD = "of these tests"
MIB = 1024**2


@dataclass(frozen=True)
class Booted:
    """A running guest with all around it."""

    guest: Guest
    spec: GuestSpec
    network: LocalNetwork

    @property
    def place(self) -> PodNetwork:
        return self.spec.network

    async def scrape(self, *collectors: str) -> dict[str, float]:
        """Scrape the guest's node_exporter from within the pod; returns the samples."""
        query = "&".join(f"collect[]={name}" for name in collectors)
        code = "import sys, urllib.request; print(urllib.request.urlopen(sys.argv[1], timeout=60).read().decode())"
        page = await output(*self.place.enter, sys.executable, "-c", code, f"{self.place.metrics_url}?{query}")
        samples = (line.rsplit(" ", 1) for line in page.splitlines() if line and not line.startswith("#"))
        return {name: float(value) for name, value in samples}

    async def pgbench(self, *arguments: str) -> str:
        """Runs pgbench from the machine through a forwarded port; returns all that it said."""
        port = await self.network.expose(self.spec.address, 5432)
        return await output(
            _pgbench(), *arguments, "postgres", env=DatabaseServer("127.0.0.1", port, PASSWORD).environment
        )

    async def psql(self, query: str) -> str:
        """Query the database through a forwarded port."""
        return await psql(await self.network.expose(self.spec.address, 5432), query)


def cluster_of(state_dir: Path) -> str:
    """The name of a guest's network: two networks of one name would remove each other."""
    return f"vm-test-{sha256(os.fsencode(state_dir)).hexdigest()[:12]}"


@asynccontextmanager
async def booted(kind: NetworkKind, state_dir: Path, mem_max: int = 1024, mem_use: int = 512) -> AsyncIterator[Booted]:
    """A guest of up to 4 CPU and 1 GiB that has 1 CPU and 512 MiB, its database serving; amounts are in MiB."""
    image = await asyncio.to_thread(ensure_image, lambda line: print(line, file=sys.stderr))
    network = await choose_network(kind, real_guests=True, cluster=cluster_of(state_dir))
    await network.up()
    try:
        await network.add_node("node-1")
        place = await network.add_pod("node-1", POD)
        spec = GuestSpec(
            vm=VM,
            pod=POD,
            cpu_max=MilliCpu(4000),
            cpu_use=MilliCpu(1000),
            mem_min=Bytes(256 * MIB),
            mem_max=Bytes(mem_max * MIB),
            mem_use=Bytes(mem_use * MIB),
            address=await network.vm_address(VM),
            network=place,
            state_dir=state_dir,
        )
        guest = (await QemuGuests.prepare(image, network, SystemClock())).create(spec)
        try:
            await (await with_password(guest)).start()
            await until_running(guest)
            yield Booted(guest, spec, network)
        finally:
            await guest.stop()
    finally:
        await network.down()


async def with_password(guest: Guest) -> Guest:
    """The guest, which gives its database the password of these tests when it boots."""
    assert isinstance(guest, QemuGuest)
    await guest.set_password(PASSWORD)
    return guest


async def until(holds: Callable[[], Awaitable[bool]], seconds: float, guest: Guest | None = None) -> None:
    """Returns once ``holds``; raises ``TimeoutError`` where that takes longer than ``seconds``.

    Where that depends on ``guest``, its end is the end of the wait, with its reason.
    """
    ended = asyncio.ensure_future(guest.ended() if guest is not None else asyncio.Event().wait())
    try:
        async with asyncio.timeout(seconds):
            while not await holds():
                assert not ended.done(), f"the guest has ended: {ended.result()}"
                await asyncio.wait((ended,), timeout=0.1)
    finally:
        ended.cancel()


async def until_running(guest: Guest) -> None:
    """Returns once the guest's database serves."""

    async def runs() -> bool:
        with suppress(GuestError):  # a guest that has just booted may be too busy to say what CPU it has
            return (await guest.state()).phase is GuestPhase.RUNNING
        return False

    await until(runs, BOOT_SECONDS, guest)


async def has_memory(guest: Guest, size: Bytes) -> None:
    """Order memory until the guest has it: under load, a guest takes and returns it in steps."""

    async def has() -> bool:
        await guest.set_memory(size)
        return (await guest.state()).mem == size

    await until(has, SETTLE_SECONDS, guest)


async def output(*command: str, env: Mapping[str, str] | None = None) -> str:
    """All that a command says, with more in its environment; it must succeed."""
    process = await asyncio.create_subprocess_exec(
        *command,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env={**os.environ, **(env or {})},
    )
    try:
        # pgbench waits forever for a database that does not answer.
        async with asyncio.timeout(COMMAND_SECONDS):
            said, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode == 0, said.decode()
    return said.decode()


async def psql(port: int, query: str) -> str:
    """Query the database at a loopback port."""
    program = str(Path(_pgbench()).with_name("psql"))
    return await output(program, "-wXAtq", "-c", query, env=DatabaseServer("127.0.0.1", port, PASSWORD).environment)


def machines(state_dir: Path) -> list[int]:
    """The processes of QEMU that use a state directory."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue  # it has just ended
        if words[0].startswith(b"qemu-system") and any(os.fsencode(state_dir) in word for word in words):
            found.append(int(process.name))
    return found


def _pgbench() -> str:
    """pgbench itself: Debian's wrapper in PATH needs a postgres cluster."""
    direct = Path("/usr/lib/postgresql/15/bin/pgbench")
    found = str(direct) if direct.exists() else shutil.which("pgbench")
    assert found is not None, "install pgbench: scripts/install-packages.sh pgbench"
    return found
