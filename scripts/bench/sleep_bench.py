"""``make bench-sleep``: a QEMU guest sleeps and wakes for its clients, without an agent or scheduler."""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
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
from deploy.neonvm.transfer_terms import TransferLimits
from protocol.messages import ObjectName
from protocol.runtime.clock import Clock, SystemClock, poll_until
from protocol.units import Bytes, Instant, MilliCpu, Seconds
from scripts.autoscale.running import runs
from scripts.autoscale.site import SiteError
from scripts.bench.mass_wake_bench import bench_mass_wake
from scripts.bench.sleep_figures import SleepFigures, TimedStandIn, table
from scripts.database_client import DatabaseError, DatabaseSession
from vm_image.build import ensure_image

_VM, _POD = ObjectName("default", "db"), ObjectName("default", "db-pod")
_NODES: Final = ("node-1", "node-2")
_LONG_SESSIONS: Final = 8
_KEEPALIVES: Final = {socket.TCP_KEEPIDLE: 10, socket.TCP_KEEPINTVL: 10, socket.TCP_KEEPCNT: 3}
"""The client closes a connection after 40 seconds without replies to keepalives."""
_BOOT_TIMEOUT, _SLEEP_TIMEOUT, _WAKE_TIMEOUT, _RETRY = Seconds(240.0), Seconds(120.0), 60.0, Seconds(0.5)
_LIMITS: Final = TransferLimits(downtime=Seconds(0.02), bandwidth=Bytes(2**40), timeout=Seconds(60.0))
_MIB: Final = 1024**2


@runs
async def bench_sleep(
    count: Annotated[int, typer.Option(min=1, max=200, help="Number of sleeps per kind of session.")] = 20,
    seconds: Annotated[int, typer.Option(min=1, max=86400, help="Duration of the last sleep.")] = 60,
    network: Annotated[NetworkKind, typer.Option(help="Namespaces or hub.")] = NetworkKind.AUTO,
    fleet: Annotated[
        int, typer.Option(min=0, max=2000, help="Put this many simulated VMs to sleep instead of a real guest.")
    ] = 0,
    herd: Annotated[int, typer.Option(min=20, help="With --fleet: number of VMs to wake at once.")] = 200,
) -> int:
    """Put a guest to sleep repeatedly; wake it with a query of an idle session, with a new session, and with a query
    while it migrates to another node.

    The last sleep is longer, with sessions whose clients send keepalives. Exits with 0 if no session was lost.

    --fleet: simulated VMs sleep on one node of a local cluster. Prints memory and CPU of the cluster's programs, then
    wakes --herd VMs at once, of which half fit; puts awake VMs to sleep again to make room for the others. Exits with 0
    if the node was never overcommitted and no VM was lost or waited without a reason in its status. Takes five minutes.
    """
    console = Console()
    if fleet:
        return await bench_mass_wake(fleet, min(herd, fleet), console)
    try:
        async with _running_guest(network, console) as bench:
            figures = bench.figures
            for number in range(count):
                await bench.wake_by_idle_session()
                await bench.wake_by_new_session()
                await bench.wake_on_other_node()
                latest = f"idle {figures.idle[-1:]}, new {figures.new[-1:]}, other node {figures.moved[-1:]}"
                console.print(f"  {number + 1:3}  {latest}")
            await bench.sleep_long(seconds)
    except (GuestError, NetworkError) as error:
        raise SiteError(str(error)) from error
    console.print(table(figures))
    return 0 if figures.is_clean else 1


@dataclass(slots=True)
class _SleepBench:
    """Puts one guest, now in the pod of ``spec``, to sleep and measures the latencies of its clients."""

    network: LocalNetwork
    spec: GuestSpec
    console: Console
    password: str = field(default_factory=secrets.token_urlsafe)
    guests: QemuGuests = field(init=False)
    guest: QemuGuest = field(init=False)
    figures: SleepFigures = field(default_factory=SleepFigures)
    _step_ends: list[Instant] = field(default_factory=list)
    _hops: int = 0

    async def new_guest(self, spec: GuestSpec) -> QemuGuest:
        """Create a guest, or the target of its migration, without starting it. Raises ``GuestError``."""
        guest = QemuGuest(spec, self.guests)
        await guest.set_password(self.password)
        return guest

    def stand_in(self, spec: GuestSpec, page: bytes, clock: Clock) -> NetworkStandIn:
        """Create the stand-in that answers for the sleeping guest."""
        address = address_of(spec)
        stand_in = TimedStandIn(address, page, clock, attachment_of(spec, address))
        stand_in.step_ends = self._step_ends = []
        return stand_in

    async def wake_by_idle_session(self) -> None:
        """Sleep, then wake by a query of an idle session."""
        session = await self._session()
        await self._fall_asleep()
        self.figures.idle += await self._time_wake(session.query("SELECT 1"))
        session.close()

    async def wake_on_other_node(self) -> None:
        """Sleep; query an idle session while the guest migrates to the other node."""
        session = await self._session()
        await self._fall_asleep()
        self.figures.moved += await self._time_wake(session.query("SELECT 1"), self._migrate)
        session.close()

    async def wake_by_new_session(self) -> None:
        """Sleep, then wake by a new session."""
        await self._fall_asleep()
        self.figures.new += await self._time_wake(self._open_and_close())

    async def sleep_long(self, seconds: int) -> None:
        """Sleep for ``seconds``, longer than the clients' keepalive timeout, then query from all sessions."""
        sessions = [await self._session() for _ in range(_LONG_SESSIONS)]
        await self._fall_asleep()
        self.console.print(f"{_LONG_SESSIONS} sessions, asleep for {seconds} s")
        await asyncio.sleep(seconds)
        for session in sessions:
            await self._time_wake(session.query("SELECT 1"))
            session.close()

    async def _wake(self) -> None:
        if fault := (await self.guest.wake()).fault:
            self.console.print(f"booted instead of woken: {fault}")

    async def _migrate(self) -> None:
        self._hops += 1
        pod = ObjectName("default", f"db-pod-{self._hops}")
        spec = replace(self.spec, pod=pod, network=await self.network.add_pod(_NODES[self._hops % 2], pod))
        target = await self.new_guest(spec)
        await target.receive()
        await self.guest.send(target, _LIMITS, lambda _: None)
        await self.guest.stop()
        await self.network.remove_pod(self.spec.pod)
        self.spec, self.guest = spec, target

    async def _time_wake(
        self, work: Awaitable[object], wake: Callable[[], Awaitable[None]] | None = None
    ) -> list[float]:
        """Wake the guest for ``work``, by ``wake`` if given; return the seconds until ``work`` is done, or an empty
        list if it failed.
        """
        began, task = SystemClock().now(), asyncio.ensure_future(work)
        # The source of a migration ends after the answer.
        ended: list[Instant] = []
        task.add_done_callback(lambda _: ended.append(SystemClock().now()))
        self.figures.sessions += 1
        try:
            async with asyncio.timeout(_WAKE_TIMEOUT):
                if (await self.guest.state()).phase is GuestPhase.ASLEEP:
                    await self.guest.woken()
                    await (wake or self._wake)()
                await task
        except (DatabaseError, OSError) as error:
            self.console.print(f"session lost: {error!r}")
            self.figures.lost += 1
            await self.running()
            return []
        finally:
            task.cancel()
        return [round(ended[0] - began, 3)]

    async def _fall_asleep(self) -> None:
        """Put the guest to sleep; retry while it is busy and refuses. Raises ``GuestError``."""
        deadline = SystemClock().now() + _SLEEP_TIMEOUT
        while True:
            began = SystemClock().now()
            try:
                asleep = await self.guest.fall_asleep()
            except SleepRefusedError:
                if SystemClock().now() > deadline:
                    raise
                await asyncio.sleep(_RETRY)
                continue
            step_ends = [began, *self._step_ends, SystemClock().now()]
            self.figures.steps.append([after - before for before, after in pairwise(step_ends)])
            return self.figures.sizes.append(asleep.saved.value / _MIB)

    async def _session(self) -> DatabaseSession:
        connection = await self.network.connect(None, self.spec.address, 5432)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in _KEEPALIVES.items():
            connection.setsockopt(socket.IPPROTO_TCP, option, value)
        return await DatabaseSession.over(connection, self.password)

    async def _open_and_close(self) -> None:
        (await self._session()).close()

    async def running(self) -> None:
        """Wait until the guest is running. Raises ``SiteError``."""

        async def is_running() -> bool:
            return (await self.guest.state()).phase is GuestPhase.RUNNING

        if not await poll_until(is_running, SystemClock(), _BOOT_TIMEOUT):
            raise SiteError(f"the guest did not start within {_BOOT_TIMEOUT:g} s")


@asynccontextmanager
async def _running_guest(kind: NetworkKind, console: Console) -> AsyncIterator[_SleepBench]:
    """Run a guest with 1 CPU and 512 MiB on a network with two nodes while the context is open."""
    image = await asyncio.to_thread(ensure_image, console.print)
    network = await choose_network(kind, real_guests=True, cluster=f"bench-sleep-{os.getpid()}")
    with TemporaryDirectory() as folder:
        await network.up()
        try:
            for node in _NODES:
                await network.add_node(node)
            attachment, address = await network.add_pod(_NODES[0], _POD), await network.vm_address(_VM)
            cpu, memory = MilliCpu(1000), Bytes(512 * _MIB)
            spec = GuestSpec(_VM, _POD, cpu, cpu, memory, memory * 2, memory, address, attachment, Path(folder))
            bench = _SleepBench(network, spec, console)
            bench.guests = replace(await QemuGuests.prepare(image, network, SystemClock()), stand_in=bench.stand_in)
            console.print(bench.guests.description)
            bench.guest = await bench.new_guest(spec)
            try:
                await bench.guest.start()
                await bench.running()
                yield bench
            finally:
                await bench.guest.stop()
        finally:
            await network.down()


if __name__ == "__main__":
    typer.run(bench_sleep)
