"""Simulated guests: hundreds in one process, with a simulated load instead of a database (B.2).

Agents scrape the same paths as of QEMU guests, and resizes use the same calls.
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
    FellAsleep,
    Guest,
    GuestError,
    GuestPhase,
    GuestSpec,
    GuestState,
    NetworkError,
    PodSockets,
    SleepRefusedError,
    TransferError,
    TransferFault,
    Woken,
)
from deploy.neonvm.simulated.simulated_load import Demand, Load
from deploy.neonvm.simulated.simulated_model import SimulatedDatabase, SimulatedKernel
from deploy.neonvm.simulated.simulated_server import GuestServer
from deploy.neonvm.simulated.simulated_sleep import SimulatedSleep
from deploy.neonvm.simulated.simulated_transfer import MemoryLoad, TransferModel
from deploy.neonvm.transfer_terms import TransferInfo, TransferLimits
from protocol.messages import ObjectName
from protocol.runtime.clock import Clock
from protocol.runtime.serving.tcp_listener import TcpListener
from protocol.units import Bytes, Instant, MilliCpu, Resources, Seconds

_STOPPED: Final = GuestState(GuestPhase.STOPPED, MilliCpu(0), Bytes(0))
_REPORT: Final = Seconds(1.0)


@dataclass(frozen=True, slots=True)
class SimulatedGuests:
    """Factory of simulated guests. ``load_of`` returns the load of a VM."""

    sockets: PodSockets
    clock: Clock
    load_of: Callable[[ObjectName], Load]

    @property
    def description(self) -> str:
        """One line for users."""
        return "simulated guests (a simulated load, with node_exporter's metrics)"

    def create(self, spec: GuestSpec) -> Guest:
        """Create a guest without starting it."""
        return SimulatedGuest(spec, self)


@dataclass(slots=True)
class _Running:
    """State of a running guest. All but its ports migrates with it."""

    since: Instant
    boot_time: float
    kernel: SimulatedKernel
    database: SimulatedDatabase
    servers: list[TcpListener]
    sleep: SimulatedSleep | None = None


class SimulatedGuest:
    """One simulated guest. It runs as soon as it is started, or has been migrated here."""

    def __init__(self, spec: GuestSpec, guests: SimulatedGuests) -> None:
        self._spec = spec
        self._guests = guests
        self._running: _Running | None = None
        self._receives = False
        self._is_moving = False
        self._end: asyncio.Future[str] | None = None
        self._servers: list[TcpListener] = []  # of a guest that has failed

    async def start(self) -> None:
        """Open the guest's metrics and control ports on its pod's address. Raises ``GuestError``."""
        if self._running is not None:
            return
        if self._receives:
            raise GuestError(f"{self._spec.vm}: the guest is waiting for an incoming migration")
        await self.stop()  # one that has failed may still hold its ports
        size = Resources(self._spec.cpu_use, self._spec.mem_use)
        kernel = SimulatedKernel.booted(self._guests.load_of(self._spec.vm), size, self._spec.cpu_max.whole_cpus)
        with ExitStack() as cleanup:
            listeners = await self._listeners(cleanup)
            cleanup.pop_all()
        database = SimulatedDatabase.from_kernel_arguments(self._spec.kernel_arguments)
        await self._run(_Running(self._guests.clock.now(), time.time(), kernel, database, []), listeners)

    async def receive(self) -> None:
        """Wait for an incoming migration; until then it has no ports."""
        if self._running is None:
            self._receives = True
            self._new_end()

    async def send(
        self, target: Guest, limits: TransferLimits, progress: Callable[[TransferInfo], None]
    ) -> TransferInfo:
        """Migrate, awake or asleep, in the time that sending its memory would take; it runs awake on the target."""
        if self._is_moving:
            raise GuestError(f"{self._spec.vm}: the guest is already being migrated")
        self._is_moving = True
        try:
            return await self._migrate(target, limits, progress)
        except BaseException:
            # As with QEMU, the target of a failed migration cannot be used again.
            if isinstance(target, SimulatedGuest) and target._receives:
                await target.stop()
            raise
        finally:
            self._is_moving = False

    async def state(self) -> GuestState:
        """The guest's state."""
        if self._receives:
            return GuestState(GuestPhase.RECEIVING, self._spec.cpu_use, self._spec.mem_use)
        if self._running is None:
            return _STOPPED
        if self._running.sleep is not None:
            return self._running.sleep.state
        size = self._now().size
        return GuestState(GuestPhase.RUNNING, size.cpu, size.mem)

    async def set_cpu(self, use: MilliCpu) -> MilliCpu | None:
        """Resize immediately. Raises ``GuestError`` for a size outside the VM's bounds."""
        if not MilliCpu(0) < use <= self._spec.cpu_max:
            raise GuestError(f"{self._spec.vm}: CPU must be above zero and at most {self._spec.cpu_max}, not {use}")
        kernel = self._now()
        self._require_running().kernel = kernel.resized(Resources(use, kernel.requested.mem))
        return use

    async def set_memory(self, use: Bytes) -> None:
        """Resize immediately, but not below the memory in use. Raises ``GuestError`` for a size outside the bounds."""
        if not self._spec.mem_min <= use <= self._spec.mem_max:
            bounds = f"between {self._spec.mem_min} and {self._spec.mem_max}"
            raise GuestError(f"{self._spec.vm}: memory must be {bounds}, not {use}")
        kernel = self._now()
        self._require_running().kernel = kernel.resized(Resources(kernel.requested.cpu, use))

    async def fall_asleep(self) -> FellAsleep:
        """Fall asleep immediately. Raises ``SleepRefusedError`` if the guest is not idle."""
        kernel, running = self._now(), self._require_running()
        if self._is_moving:
            raise SleepRefusedError(f"{self._spec.vm}: the guest is being migrated")
        if reasons := [*([] if kernel.demand.is_idle else ["load"]), *running.database.awake]:
            raise SleepRefusedError(f"{self._spec.vm}: the guest has {' and '.join(reasons)}")
        running.sleep = SimulatedSleep(kernel, running.since, self._guests.clock)
        return FellAsleep(kernel.mem_used, running.database.sessions)

    async def woken(self) -> str:
        """Wait until the load is not idle. Raises ``GuestError`` if the guest is not asleep."""
        sleep = self._require_running().sleep
        if sleep is None:
            raise GuestError(f"{self._spec.vm}: the guest is not asleep")
        return await sleep.woken()

    async def wake(self) -> Woken:
        """Wake immediately. Raises ``GuestError`` if the guest has stopped, or is being migrated."""
        if self._is_moving:
            raise GuestError(f"{self._spec.vm}: the guest is being migrated")
        running = self._require_running()
        if running.sleep is not None:
            running.kernel, running.sleep = running.sleep.end(), None
        return Woken(Seconds(0.0))

    async def ended(self) -> str:
        """Wait until the guest has stopped, failed, or was migrated away. Raises ``GuestError`` before its start."""
        if self._end is None:
            raise GuestError(f"{self._spec.vm}: the guest was not started")
        # Cancelling one caller must not cancel the future for all others.
        return await asyncio.shield(self._end)

    def fail(self, reason: str) -> None:
        """Fail for ``reason``, like a real guest whose machine stops."""
        self._receives = False
        # Its ports stay open until it is stopped, like a hung machine's.
        failed, self._running = self._running, None
        if failed is not None:
            self._servers = failed.servers
            _end_sleep(failed)
        self._set_end(reason)

    async def stop(self) -> None:
        """Close its ports and all connections."""
        self._receives = False
        running, self._running = self._running, None
        if running is not None:
            _end_sleep(running)
        servers, self._servers = [*self._servers, *(running.servers if running is not None else ())], []
        self._set_end("it was stopped")
        await _close_all(servers)

    @property
    def _hardware(self) -> tuple[ObjectName, MilliCpu, Bytes, Bytes]:
        spec = self._spec
        return spec.vm, spec.cpu_max, spec.mem_min, spec.mem_max

    async def _migrate(
        self, target: Guest, limits: TransferLimits, progress: Callable[[TransferInfo], None]
    ) -> TransferInfo:
        self._require_running()
        if not isinstance(target, SimulatedGuest) or target._hardware != self._hardware:
            raise TransferError(TransferFault.REFUSED, f"{self._spec.vm}: the target has different hardware")
        info = await self._transfer(target, limits, progress)
        await self._switch_to(target)
        return info

    async def _transfer(
        self, target: SimulatedGuest, limits: TransferLimits, progress: Callable[[TransferInfo], None]
    ) -> TransferInfo:
        """Wait until everything has been sent. Raises ``TransferError`` on timeout, or if an end is lost."""
        clock, kernel = self._guests.clock, self._sleeping_kernel() or self._now()
        busy_cores = min(kernel.demand.cpu, kernel.size.cpu.as_cores)
        transfer = TransferModel.of(MemoryLoad(kernel.size.mem, kernel.mem_used, busy_cores), limits)
        began = clock.now()
        end = limits.timeout if transfer.end is None else transfer.end
        finish = Instant(began + end)
        while True:
            self._check_ends(target)
            left = Seconds(finish - clock.now())
            info = transfer.at(end if left <= 0 else Seconds(clock.now() - began))
            progress(info)
            if left <= 0:
                break
            # In steps, to notice an end that is lost meanwhile.
            await clock.sleep(min(_REPORT, left))
        if transfer.end is None:
            message = f"{self._spec.vm}: not sent within {limits.timeout:g} s"
            raise TransferError(TransferFault.TIMED_OUT, message)
        return info

    def _check_ends(self, target: SimulatedGuest) -> None:
        if self._running is None:
            raise TransferError(TransferFault.SOURCE_LOST, f"{self._spec.vm}: the guest ended during the migration")
        if not target._receives:
            raise TransferError(TransferFault.TARGET_LOST, f"{self._spec.vm}: the target is gone")

    async def _switch_to(self, target: SimulatedGuest) -> None:
        """Switch to the target, without an await at which both or neither run."""
        with ExitStack() as cleanup:
            try:
                listeners = await target._listeners(cleanup)
            except GuestError as error:
                raise TransferError(TransferFault.TARGET_LOST, str(error)) from error
            self._check_ends(target)
            cleanup.pop_all()
        # The kernel migrates, so counters and position in the load continue.
        running, self._running = self._require_running(), None
        if running.sleep is not None:
            running.kernel, running.sleep = running.sleep.end(), None
        old, running.servers = running.servers, []
        self._set_end("it was migrated away")
        await target._run(running, listeners)
        await _close_all(old)

    async def _listeners(self, held: ExitStack) -> list[socket.socket]:
        """The guest's listening sockets, without accepting yet; ``held`` closes them. Raises ``GuestError``."""
        listen, pod = self._guests.sockets.listen, self._spec.pod
        try:
            return [held.enter_context(await listen(pod, port)) for port in (METRICS_PORT, DAEMON_PORT)]
        except (OSError, NetworkError) as error:
            address = self._spec.network.address
            raise GuestError(f"{self._spec.vm}: the simulated guest cannot listen at {address}: {error}") from error

    async def _run(self, running: _Running, listeners: Sequence[socket.socket]) -> None:
        if not self._receives:
            self._new_end()
        self._receives, self._running = False, running
        server = GuestServer(
            self._now,
            self._set_demand,
            lambda: self._require_running().database,
            self._set_database,
            self.fail,
            running.boot_time,
            self._sleeping_kernel,
        )
        for listener in listeners:
            running.servers.append(TcpListener([listener], server.serve))

    def _new_end(self) -> None:
        if self._end is None or self._end.done():
            self._end = asyncio.get_running_loop().create_future()

    def _set_end(self, reason: str) -> None:
        if self._end is not None and not self._end.done():
            self._end.set_result(reason)

    def _set_demand(self, demand: Demand | None) -> None:
        running = self._require_running()
        if running.sleep is not None:
            running.sleep.set_demand(demand)
        else:
            running.kernel = self._now().under(demand)

    def _sleeping_kernel(self) -> SimulatedKernel | None:
        sleep = self._require_running().sleep
        return None if sleep is None else sleep.kernel

    def _set_database(self, database: SimulatedDatabase) -> None:
        self._require_running().database = database

    def _now(self) -> SimulatedKernel:
        """The guest, advanced to now. Raises ``GuestError`` if it does not run or is asleep."""
        running = self._require_running()
        if running.sleep is not None:
            raise GuestError(f"{self._spec.vm}: the guest is asleep")
        # Advanced on demand, without ticks: the model is exact for any time.
        running.kernel = running.kernel.advanced(Seconds(self._guests.clock.now() - running.since))
        return running.kernel

    def _require_running(self) -> _Running:
        if self._running is None:
            raise GuestError(f"{self._spec.vm}: the guest has stopped")
        return self._running


def _end_sleep(ended: _Running) -> None:
    if ended.sleep is not None:
        ended.sleep.end()


async def _close_all(servers: list[TcpListener]) -> None:
    for server in servers:
        await server.close()
