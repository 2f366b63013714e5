"""Simulated guests behind the guest port: hundreds in one process, playing a load instead of a database (B.2).

Outside of the guest nothing differs: the agent scrapes the same paths, the runtime resizes by the same calls.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Final

from deploy.neonvm.addressing import DAEMON_PORT, METRICS_PORT
from deploy.neonvm.ports import (
    Guest,
    GuestError,
    GuestPhase,
    GuestSpec,
    GuestState,
    NetworkError,
    PodSockets,
    TransferError,
    TransferFault,
)
from deploy.neonvm.simulated.simulated_load import Demand, Load
from deploy.neonvm.simulated.simulated_model import SimulatedDatabase, SimulatedKernel
from deploy.neonvm.simulated.simulated_server import GuestServer
from deploy.neonvm.simulated.simulated_transfer import Course, MemoryLoad
from deploy.neonvm.transfer_terms import TransferInfo, TransferLimits
from protocol.messages import ObjectName
from protocol.runtime.clock import Clock
from protocol.runtime.serving.tcp_listener import TcpListener
from protocol.units import Bytes, Instant, MilliCpu, Resources, Seconds

_STOPPED: Final = GuestState(GuestPhase.STOPPED, MilliCpu(0), Bytes(0))
_REPORT: Final = Seconds(1.0)


@dataclass(frozen=True, slots=True)
class SimulatedGuests:
    """Makes simulated guests; ``load_of`` says what each VM plays."""

    sockets: PodSockets
    clock: Clock
    load_of: Callable[[ObjectName], Load]

    @property
    def description(self) -> str:
        """One line for people."""
        return "simulated guests (they play a load and answer like node_exporter)"

    def create(self, spec: GuestSpec) -> Guest:
        """A guest that is ready to be started; touches nothing yet."""
        return SimulatedGuest(spec, self)


@dataclass(slots=True)
class _Running:
    """State of a guest from its start to its stop; all but its ports moves with it."""

    since: Instant
    boot_time: float
    kernel: SimulatedKernel
    database: SimulatedDatabase
    servers: list[TcpListener]


class SimulatedGuest:
    """One simulated guest. It runs from the moment it is started, or sent here."""

    def __init__(self, spec: GuestSpec, made_by: SimulatedGuests) -> None:
        self._spec = spec
        self._made_by = made_by
        self._running: _Running | None = None
        self._receives = False
        self._is_moving = False
        self._end: asyncio.Future[str] | None = None
        self._servers: list[TcpListener] = []  # of a guest that has failed

    async def start(self) -> None:
        """Opens the guest's metrics and control ports on its pod's address. Raises ``GuestError``."""
        if self._running is not None:
            return
        if self._receives:
            raise GuestError(f"{self._spec.vm}: the guest waits for another one to be sent to it")
        await self.stop()  # one that has failed may still hold its ports
        size = Resources(self._spec.cpu_use, self._spec.mem_use)
        kernel = SimulatedKernel.booted(self._made_by.load_of(self._spec.vm), size, self._spec.cpu_max.whole_cpus)
        with ExitStack() as cleanup:
            listeners = await self._listeners(cleanup)
            cleanup.pop_all()
        database = SimulatedDatabase.told(self._spec.kernel_arguments)
        await self._run(_Running(self._made_by.clock.now(), time.time(), kernel, database, []), listeners)

    async def receive(self) -> None:
        """Waits for another guest; until then it has no ports."""
        if self._running is None:
            self._receives = True
            self._begins()

    async def send(
        self, target: Guest, limits: TransferLimits, progress: Callable[[TransferInfo], None]
    ) -> TransferInfo:
        """Takes the time that sending its memory would take, and then goes on at the target."""
        if self._is_moving:
            raise GuestError(f"{self._spec.vm}: the guest is on its way already")
        self._is_moving = True
        try:
            return await self._moved(target, limits, progress)
        except BaseException:
            # As in QEMU, a target whose move has failed is of no further use.
            if isinstance(target, SimulatedGuest) and target._receives:
                await target.stop()
            raise
        finally:
            self._is_moving = False

    async def state(self) -> GuestState:
        """The guest's present size."""
        if self._receives:
            return GuestState(GuestPhase.RECEIVING, self._spec.cpu_use, self._spec.mem_use)
        if self._running is None:
            return _STOPPED
        size = self._now().size
        return GuestState(GuestPhase.RUNNING, size.cpu, size.mem)

    async def set_cpu(self, use: MilliCpu) -> MilliCpu | None:
        """Resizes at once. Raises ``GuestError`` for a size outside of the VM's bounds."""
        if not MilliCpu(0) < use <= self._spec.cpu_max:
            raise GuestError(f"{self._spec.vm}: CPU must be above zero and at most {self._spec.cpu_max}, not {use}")
        kernel = self._now()
        self._replace(kernel.resized(Resources(use, kernel.asked.mem)))
        return use

    async def set_memory(self, use: Bytes) -> None:
        """Resizes at once, as far down as memory is not in use. Raises ``GuestError`` for a size out of bounds."""
        if not self._spec.mem_min <= use <= self._spec.mem_max:
            bounds = f"between {self._spec.mem_min} and {self._spec.mem_max}"
            raise GuestError(f"{self._spec.vm}: memory must be {bounds}, not {use}")
        kernel = self._now()
        self._replace(kernel.resized(Resources(kernel.asked.cpu, use)))

    async def ended(self) -> str:
        """Returns once the guest has stopped, moved, or was made to fail. Raises ``GuestError`` before its start."""
        if self._end is None:
            raise GuestError(f"{self._spec.vm}: the guest was not started")
        # A caller that is cancelled must not end the future of all others.
        return await asyncio.shield(self._end)

    def fail(self, reason: str) -> None:
        """The guest cannot go on from this instant, as a real one whose machine stops for ``reason``."""
        self._receives = False
        # Its ports stay open until it is stopped, as those of a machine that hangs.
        failed, self._running = self._running, None
        if failed is not None:
            self._servers = failed.servers
        self._ends(reason)

    async def stop(self) -> None:
        """Closes its ports and every connection to them."""
        self._receives = False
        running, self._running = self._running, None
        servers, self._servers = [*self._servers, *(running.servers if running is not None else ())], []
        self._ends("it was told to stop")
        await _closed(servers)

    @property
    def _hardware(self) -> tuple[ObjectName, MilliCpu, Bytes, Bytes]:
        spec = self._spec
        return spec.vm, spec.cpu_max, spec.mem_min, spec.mem_max

    async def _moved(
        self, target: Guest, limits: TransferLimits, progress: Callable[[TransferInfo], None]
    ) -> TransferInfo:
        self._runs()
        if not isinstance(target, SimulatedGuest) or target._hardware != self._hardware:
            raise TransferError(TransferFault.REFUSED, f"{self._spec.vm}: the other end is not of the same hardware")
        info = await self._passed(target, limits, progress)
        await self._goes_on_at(target)
        return info

    async def _passed(
        self, target: SimulatedGuest, limits: TransferLimits, progress: Callable[[TransferInfo], None]
    ) -> TransferInfo:
        """Returns when all has been sent. Raises ``TransferError`` if an end is lost or time is up."""
        clock, kernel = self._made_by.clock, self._now()
        busy_cores = min(kernel.demand.cpu, kernel.size.cpu.as_cores)
        course = Course.of(MemoryLoad(kernel.size.mem, kernel.mem_used, busy_cores), limits)
        began = clock.now()
        end = limits.timeout if course.end is None else course.end
        finish = Instant(began + end)
        while True:
            self._both_are_there(target)
            left = Seconds(finish - clock.now())
            info = course.at(end if left <= 0 else Seconds(clock.now() - began))
            progress(info)
            if left <= 0:
                break
            # In steps, so that an end that is lost on the way is noticed.
            await clock.sleep(min(_REPORT, left))
        if course.end is None:
            story = f"{self._spec.vm}: it could not be sent within {limits.timeout:g} s"
            raise TransferError(TransferFault.TIMED_OUT, story)
        return info

    def _both_are_there(self, target: SimulatedGuest) -> None:
        if self._running is None:
            raise TransferError(TransferFault.SOURCE_LOST, f"{self._spec.vm}: the guest ended on its way")
        if not target._receives:
            raise TransferError(TransferFault.TARGET_LOST, f"{self._spec.vm}: the other end is gone")

    async def _goes_on_at(self, target: SimulatedGuest) -> None:
        """From one instant to the next the target runs, and this one does not."""
        with ExitStack() as cleanup:
            try:
                listeners = await target._listeners(cleanup)
            except GuestError as error:
                raise TransferError(TransferFault.TARGET_LOST, str(error)) from error
            self._both_are_there(target)
            cleanup.pop_all()
        # The kernel moves along, so counters and the place in the load go on.
        running, self._running = self._runs(), None
        old, running.servers = running.servers, []
        self._ends("it runs elsewhere now")
        await target._run(running, listeners)
        await _closed(old)

    async def _listeners(self, held: ExitStack) -> list[socket.socket]:
        """The guest's listening sockets, which do not accept yet; ``held`` closes them. Raises ``GuestError``."""
        listen, pod = self._made_by.sockets.listen, self._spec.pod
        try:
            return [held.enter_context(await listen(pod, port)) for port in (METRICS_PORT, DAEMON_PORT)]
        except (OSError, NetworkError) as error:
            place = self._spec.network.address
            raise GuestError(f"{self._spec.vm}: the simulated guest cannot listen at {place}: {error}") from error

    async def _run(self, running: _Running, listeners: Sequence[socket.socket]) -> None:
        if not self._receives:
            self._begins()
        self._receives, self._running = False, running
        answering = GuestServer(
            self._now, self._press, lambda: self._runs().database, self._tell, self.fail, running.boot_time
        )
        for listener in listeners:
            running.servers.append(TcpListener([listener], answering.serve))

    def _begins(self) -> None:
        if self._end is None or self._end.done():
            self._end = asyncio.get_running_loop().create_future()

    def _ends(self, reason: str) -> None:
        if self._end is not None and not self._end.done():
            self._end.set_result(reason)

    def _press(self, demand: Demand | None) -> None:
        self._replace(self._now().under(demand))

    def _tell(self, database: SimulatedDatabase) -> None:
        self._runs().database = database

    def _now(self) -> SimulatedKernel:
        """The guest at this moment. Raises ``GuestError`` if it does not run."""
        running = self._runs()
        # The model is exact for any time, so nothing ticks: the guest is computed when it is asked.
        running.kernel = running.kernel.advanced(Seconds(self._made_by.clock.now() - running.since))
        return running.kernel

    def _replace(self, kernel: SimulatedKernel) -> None:
        self._runs().kernel = kernel

    def _runs(self) -> _Running:
        if self._running is None:
            raise GuestError(f"{self._spec.vm}: the guest has stopped")
        return self._running


async def _closed(servers: list[TcpListener]) -> None:
    for server in servers:
        await server.close()
