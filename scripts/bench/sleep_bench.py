"""``make bench-sleep``: a QEMU guest falls asleep, and wakes for its clients without an agent or scheduler."""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Final

import typer
from rich.console import Console

from deploy.neonvm.guests.qemu_guest import QemuGuest
from deploy.neonvm.guests.qemu_guests import QemuGuests
from deploy.neonvm.network.chooser import LocalNetwork, NetworkKind, choose_network
from deploy.neonvm.ports import GuestError, GuestPhase, GuestSpec, NetworkError, SleepRefusedError
from deploy.neonvm.sleep.network_stand_in import NetworkStandIn
from deploy.neonvm.sleep.stand_in import address_of, attachment_of
from protocol.messages import ObjectName
from protocol.runtime.clock import Clock, SystemClock
from protocol.units import Bytes, Instant, MilliCpu, Seconds
from scripts.autoscale.demonstration.waiting import poll_until
from scripts.autoscale.running import runs
from scripts.autoscale.site import SiteError
from scripts.bench.mass_wake_bench import bench_herd
from scripts.bench.sleep_figures import SleepFigures, TimedSleeper, table
from scripts.database_client import DatabaseError, DatabaseSession
from vm_image.build import ensure_image

_VM, _POD, _NODE = ObjectName("default", "db"), ObjectName("default", "db-pod"), "node-1"
_LONG_SESSIONS: Final = 8
_KEEPALIVES: Final = {socket.TCP_KEEPIDLE: 10, socket.TCP_KEEPINTVL: 10, socket.TCP_KEEPCNT: 3}
"""Without replies to its keepalives, a connection is closed after 40 seconds."""
_BOOT, _REFUSALS, _PATIENCE, _PAUSE = Seconds(240.0), Seconds(120.0), 60.0, Seconds(0.5)
_MIB: Final = 1024**2


@runs
async def bench_sleep(
    count: Annotated[int, typer.Option(min=1, max=200, help="Number of sleeps of each kind.")] = 20,
    seconds: Annotated[int, typer.Option(min=1, max=86400, help="Duration of the last sleep.")] = 60,
    network: Annotated[NetworkKind, typer.Option(help="Namespaces or hub.")] = NetworkKind.AUTO,
    fleet: Annotated[
        int, typer.Option(min=0, max=2000, help="Run the fleet benchmark with this many simulated VMs instead.")
    ] = 0,
    herd: Annotated[int, typer.Option(min=20, help="Number of the fleet's VMs to wake at once.")] = 200,
) -> int:
    """Put a guest to sleep repeatedly, and wake it by a query of an idle session or by a new session.

    The last sleep is longer, with sessions whose clients send keepalives. Exits with 0 if no session was lost.

    --fleet: simulated VMs sleep on one node of an embedded cluster. Prints memory and CPU of the cluster's programs,
    then wakes --herd VMs at once, of which half fit. When no more fit, awake VMs are put to sleep again. Exits with 0
    if the node was never over-committed, and no VM was lost or waited without a reason in its status. Takes five
    minutes.
    """
    console = Console()
    if fleet:
        return await bench_herd(fleet, min(herd, fleet), console)
    try:
        async with _booted(network, console) as sleeps:
            figures = sleeps.figures
            for number in range(count):
                await sleeps.by_idle_session()
                await sleeps.by_new_session()
                console.print(f"  {number + 1:3}  idle {figures.idle[-1:]}, new {figures.new[-1:]}")
            await sleeps.long(seconds)
    except (GuestError, NetworkError) as error:
        raise SiteError(str(error)) from error
    console.print(table(figures))
    return 0 if figures.is_clean else 1


@dataclass(slots=True)
class _Sleeps:
    """Sleeps of one guest, and the latencies of its clients."""

    network: LocalNetwork
    spec: GuestSpec
    console: Console
    password: str = field(default_factory=secrets.token_urlsafe)
    guest: QemuGuest = field(init=False)
    figures: SleepFigures = field(default_factory=SleepFigures)
    _times: list[Instant] = field(default_factory=list)

    def stand_in(self, spec: GuestSpec, page: bytes, clock: Clock) -> NetworkStandIn:
        """Create the guest's sleeper."""
        address = address_of(spec)
        sleeper = TimedSleeper(address, page, clock, attachment_of(spec, address))
        sleeper.times = self._times = []
        return sleeper

    async def by_idle_session(self) -> None:
        """One sleep, ended by a query of an idle session."""
        session = await self._session()
        await self._fall_asleep()
        self.figures.idle += await self._answered(session.query("SELECT 1"))
        session.close()

    async def by_new_session(self) -> None:
        """One sleep, ended by a new session."""
        await self._fall_asleep()
        self.figures.new += await self._answered(self._visit())

    async def long(self, seconds: int) -> None:
        """One sleep of ``seconds``, longer than the clients' keepalive timeouts."""
        sessions = [await self._session() for _ in range(_LONG_SESSIONS)]
        await self._fall_asleep()
        self.console.print(f"{_LONG_SESSIONS} sessions, asleep for {seconds} s")
        await asyncio.sleep(seconds)
        for session in sessions:
            await self._answered(session.query("SELECT 1"))
            session.close()

    async def _answered(self, work: Awaitable[object]) -> list[float]:
        """Wake the guest for ``work``; return the seconds that it took, or nothing if it failed."""
        began, task = SystemClock().now(), asyncio.ensure_future(work)
        self.figures.sessions += 1
        try:
            async with asyncio.timeout(_PATIENCE):
                if (await self.guest.state()).phase is GuestPhase.ASLEEP:
                    await self.guest.woken()
                    if fault := (await self.guest.wake()).fault:
                        self.console.print(f"booted: {fault}")
                await task
        except (DatabaseError, OSError) as error:
            self.console.print(f"lost: {error!r}")
            self.figures.lost += 1
            await self.running()
            return []
        finally:
            task.cancel()
        return [round(SystemClock().now() - began, 3)]

    async def _fall_asleep(self) -> None:
        """Put the guest to sleep; retry while it refuses because it is busy. Raises ``GuestError``."""
        until = SystemClock().now() + _REFUSALS
        while True:
            began = SystemClock().now()
            try:
                asleep = await self.guest.fall_asleep()
            except SleepRefusedError:
                if SystemClock().now() > until:
                    raise
                await asyncio.sleep(_PAUSE)
                continue
            times = [began, *self._times, SystemClock().now()]
            self.figures.steps.append([after - before for before, after in pairwise(times)])
            return self.figures.sizes.append(asleep.saved.value / _MIB)

    async def _session(self) -> DatabaseSession:
        connection = await self.network.connect(None, self.spec.address, 5432)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in _KEEPALIVES.items():
            connection.setsockopt(socket.IPPROTO_TCP, option, value)
        return await DatabaseSession.over(connection, self.password)

    async def _visit(self) -> None:
        (await self._session()).close()

    async def running(self) -> None:
        """Wait until the guest is running. Raises ``SiteError``."""

        async def serves() -> bool:
            return (await self.guest.state()).phase is GuestPhase.RUNNING

        if not await poll_until(serves, SystemClock(), _BOOT):
            raise SiteError(f"the guest did not start within {_BOOT:g} s")


@asynccontextmanager
async def _booted(kind: NetworkKind, console: Console) -> AsyncIterator[_Sleeps]:
    """A running guest with 1 CPU and 512 MiB, on its own network."""
    image = await asyncio.to_thread(ensure_image, console.print)
    network = await choose_network(kind, real_guests=True, cluster=f"bench-sleep-{os.getpid()}")
    with TemporaryDirectory() as folder:
        await network.up()
        try:
            await network.add_node(_NODE)
            place, address = await network.add_pod(_NODE, _POD), await network.vm_address(_VM)
            cpu, memory = MilliCpu(1000), Bytes(512 * _MIB)
            spec = GuestSpec(_VM, _POD, cpu, cpu, memory, memory * 2, memory, address, place, Path(folder))
            sleeps = _Sleeps(network, spec, console)
            guests = replace(await QemuGuests.prepare(image, network, SystemClock()), stand_in=sleeps.stand_in)
            console.print(guests.description)
            sleeps.guest = guest = QemuGuest(spec, guests)
            try:
                await guest.set_password(sleeps.password)
                await guest.start()
                await sleeps.running()
                yield sleeps
            finally:
                await guest.stop()
        finally:
            await network.down()


if __name__ == "__main__":
    typer.run(bench_sleep)
