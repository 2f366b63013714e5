"""A ``ResizableGuest`` in a runner pod, controlled through its runner and its QEMU.

An open pod may have NeonVM's own runner, which reports only the CPU; QEMU reports the memory. With ``QmpScaling`` that
runner only stores the CPU, and the controller hot-plugs vCPUs in QEMU.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Final

import msgspec

from deploy.neonvm.access.connections import RunnerEndpoint
from deploy.neonvm.objects.boot_record import BootRecord
from deploy.neonvm.ports import Acceleration, FellAsleep, GuestError, GuestPhase, GuestState, Woken
from deploy.neonvm.qemu.handover import TargetState, target_state
from deploy.neonvm.qemu.machine import Machine, plug_memory
from deploy.neonvm.qemu.qemu_command import MEMORY_BLOCK
from deploy.neonvm.qemu.qemu_process import EventListeners, Monitor
from deploy.neonvm.qemu.reports import parse_memory, parse_run_state
from deploy.neonvm.remote.runner_client import RunnerClient, SilentError, UnansweredError
from deploy.neonvm.runner.pod_runner import RunnerStatus
from deploy.neonvm.texts import controller as texts
from protocol.runtime.clock import Clock
from protocol.units import Bytes, Instant, MilliCpu, Seconds

Connect = Callable[[RunnerEndpoint], Awaitable[socket.socket]]
"""Opens a non-blocking connection to a pod's QMP monitor; raises ``OSError``."""

_CONNECT_SECONDS: Final = 3.0
_QUIT_SECONDS: Final = 3.0


class RemoteMachine(EventListeners):
    """The QEMU of a runner pod as a ``Machine``, through the pod's QMP port; use it with ``async with``. ``is_alive``
    returns True until the pod has ended; no response does not mean that the machine is dead.
    """

    def __init__(self, runner: RunnerEndpoint, connect: Connect, is_alive: Callable[[], bool]) -> None:
        super().__init__()
        self._who = runner.name
        self._runner = runner
        self._connect = connect
        self._is_alive = is_alive
        self._monitor: Monitor | None = None
        self._times: dict[str, float] = {}
        self._has_quit = False
        self._connecting = asyncio.Lock()

    async def __aenter__(self) -> RemoteMachine:
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._monitor is not None:
            monitor, self._monitor = self._monitor, None
            await monitor.close()

    @property
    def alive(self) -> bool:
        """True if QEMU may still run in its pod."""
        return not self._has_quit and self._is_alive()

    async def call(self, command: str, arguments: Mapping[str, object] | None = None) -> object:
        """Run one QMP command. Raises ``GuestError``."""
        return await (await self._connected()).call(command, arguments)

    async def _connected(self) -> Monitor:
        # Concurrent calls must share one connection.
        async with self._connecting:
            if self._monitor is not None and self._monitor.is_up:
                return self._monitor
            if self._monitor is not None:
                # Reconnect. The call that broke is not repeated, because it may have been executed.
                broken, self._monitor = self._monitor, None
                await broken.close()
            if not self.alive:
                raise GuestError(texts.QEMU_ENDED.format(who=self._who))
            monitor = Monitor(self._who, self)
            try:
                async with asyncio.timeout(_CONNECT_SECONDS):
                    end = await self._connect(self._runner)
            except (OSError, TimeoutError) as error:
                raise GuestError(texts.QEMU_UNREACHABLE.format(who=self._who, error=error)) from error
            await monitor.connect(end)
            self._monitor = monitor
            return monitor

    async def pass_socket(self, name: str, end: socket.socket) -> None:  # noqa: ARG002 - a part of the port
        """Always raises ``GuestError``: a socket cannot be passed to another node."""
        raise GuestError(texts.SOCKET_NOT_PASSABLE.format(who=self._who, name=name))

    async def wait_for_event(self, seconds: float) -> None:
        """Wait up to ``seconds`` for QEMU to stop, resume, or make progress with a migration."""
        if self._monitor is not None and self._monitor.is_up:
            await self._monitor.wait_for_event(seconds)
        else:
            # No events without a connection.
            await asyncio.sleep(seconds)

    def event_time(self, event: str) -> float | None:
        """Unix time of the last ``event`` on any connection; None if never."""
        latest = self._monitor.event_time(event) if self._monitor is not None else None
        if latest is not None:
            # Cached, because a new connection has no history.
            self._times[event] = latest
        return self._times.get(event)

    async def failed(self) -> str:
        """Always raises ``GuestError``: the API server reports the end of the pod."""
        raise GuestError(texts.FAILURES_IN_POD.format(who=self._who))

    def output_tail(self) -> str:
        """A reference to the pod, which has QEMU's output."""
        return "see the pod's status and log"

    async def kill(self) -> None:
        """Tell QEMU to quit, without waiting for one that does not respond."""
        try:
            async with asyncio.timeout(_QUIT_SECONDS):
                await self.call("quit")
        except (GuestError, TimeoutError):
            return
        self._has_quit = True

    async def end(self) -> None:
        """Same as ``kill``."""
        await self.kill()


_MEMORY_PAUSE: Final = Seconds(0.1)
_SLEEP_PAUSES: Final = Seconds(0.5), Seconds(1.0), Seconds(2.0)
"""Pauses before repeating a request to sleep whose response was lost."""
_HELD: Final = Seconds(1800.0)
"""Seconds after which the long poll for a wake is repeated, up to twice that."""
_SHOWN: Final = 300
"""Maximum length of a runner's message in the VM's status."""


class RemoteGuest:
    """One guest. ``machine`` opens its QMP monitor, ``polled`` is called after the first successful poll, ``booted`` is
    the machine that it booted with.
    """

    def __init__(
        self,
        runner: RunnerClient,
        machine: Callable[[], RemoteMachine],
        booted: BootRecord,
        clock: Clock,
        polled: Callable[[], None],
    ) -> None:
        self.runner = runner
        self.machine = machine
        self._booted = booted
        self._clock = clock
        self._polled = polled
        self._machine: RemoteMachine | None = None
        self._users = 0
        self._sleeps = 0
        self.is_known = False
        self.acceleration: Acceleration | None = None
        self.moves_asleep = False

    async def state(self) -> GuestState:
        """The guest's present size. Raises ``GuestError``."""
        state = (
            await self._of_neonvms_runner() if self.runner.endpoint.is_open else self._read(await self.runner.status())
        )
        if not self.is_known:
            self.is_known = True
            self._polled()
        return state

    def _read(self, status: RunnerStatus) -> GuestState:
        # Truncated, because the reason goes into the VM's status.
        self.acceleration = Acceleration(status.accelerator == "kvm", status.reason[:_SHOWN])
        self._note(status.sleeps)
        self.moves_asleep = status.moves_asleep
        try:
            return GuestState(GuestPhase(status.phase), MilliCpu(status.cpu), Bytes(status.memory))
        except ValueError as error:
            raise GuestError(texts.RUNNER_PHASE_UNKNOWN.format(who=self.runner.who, phase=status.phase)) from error

    async def _of_neonvms_runner(self) -> GuestState:
        phase = GuestPhase.RUNNING if await self.runner.is_ready() else GuestPhase.BOOTING
        async with self._shared() as machine:
            # The readiness probe cannot distinguish a booting guest from an incoming migration.
            if target_state(parse_run_state(await machine.call("query-status"))) is TargetState.FILLING:
                phase = GuestPhase.RECEIVING
            memory = parse_memory(await machine.call("query-memory-size-summary"))
            plugged = await count_plugged(machine, self.runner.who) if self._booted.plugs_cpus else None
        cpu = await self.runner.cpu()
        if plugged is not None and plugged != cpu.whole_cpus:
            # NeonVM's runner returns the last order; QEMU has the actual number.
            cpu = MilliCpu(1000 * plugged)
        return GuestState(phase, cpu, memory)

    async def set_cpu(self, use: MilliCpu) -> MilliCpu | None:
        """Set the guest's CPU; return what it then has, None if not reported. Raises ``GuestError``."""
        if self.runner.endpoint.is_open and self._booted.plugs_cpus:
            async with self._shared() as machine:
                # QEMU first: the runner only stores the order, and reports it as executed.
                await plug(machine, self.runner.who, use.whole_cpus, self._clock)
        return await self.runner.set_cpu(use)

    async def set_memory(self, use: Bytes) -> None:
        """Plug or unplug memory (``plug_memory``). Raises ``GuestError``."""
        low, high = self._booted.machine.mem_min, self._booted.machine.mem_max
        if not low <= use <= high:
            raise GuestError(texts.MEMORY_OUT_OF_RANGE.format(who=self.runner.who, low=low, high=high, use=use))
        async with self._shared() as machine:
            await plug_memory(machine, (use - low).down_to(MEMORY_BLOCK), self._clock, _MEMORY_PAUSE)

    async def fall_asleep(self) -> FellAsleep:
        """Put the guest to sleep (``SleepingGuest``). Raises ``SleepRefusedError`` and ``GuestError``."""
        # The same number in each attempt: a poll may have seen the guest asleep, and awake again, in the meantime.
        sleeps = self._sleeps
        for pause in _SLEEP_PAUSES:
            try:
                return await self._fallen_asleep(sleeps)
            except UnansweredError:
                # It may be asleep; the repeated request then returns the result.
                await self._clock.sleep(pause)
        return await self._fallen_asleep(sleeps)

    async def _fallen_asleep(self, sleeps: int) -> FellAsleep:
        slept = await self.runner.fall_asleep(sleeps)
        self._note(slept.sleeps)
        return FellAsleep(Bytes(slept.saved), slept.sessions)

    def _note(self, sleeps: int) -> None:
        # A poll sent before the guest fell asleep may be answered after it.
        self._sleeps = max(self._sleeps, sleeps)

    async def woken(self) -> str:
        """Wait until the sleeping guest must wake; return the reason. Raises ``GuestError``."""
        while True:
            try:
                return await self.runner.woken(Seconds(_HELD * (1.0 + self._clock.jitter())))
            except SilentError:
                continue  # nothing has happened

    async def wake(self) -> Woken:
        """Resume the guest from its last known sleep. Raises ``GuestError``."""
        return await self.runner.wake(self._sleeps)

    @asynccontextmanager
    async def _shared(self) -> AsyncIterator[RemoteMachine]:
        """One connection to QEMU, shared by concurrent calls."""
        # NeonVM's runner gives QEMU one monitor socket, which serves one client at a time.
        if self._machine is None:
            self._machine = self.machine()
            await self._machine.__aenter__()
        machine, self._users = self._machine, self._users + 1
        try:
            yield machine
        finally:
            self._users -= 1
            if not self._users:
                self._machine = None
                await machine.__aexit__()

    async def ended(self) -> str:
        """Never returns: the API server reports the end of the pod."""
        await asyncio.Event().wait()
        return ""


_PLUG_SECONDS: Final = Seconds(3.0)
_PLUG_PAUSE: Final = Seconds(0.1)
_PLUGGED: Final = "/machine/peripheral/cpu"


class _Slot(msgspec.Struct, frozen=True, rename="kebab"):
    type: str
    props: dict[str, int]
    qom_path: str | None = None

    @property
    def core(self) -> int:
        return self.props.get("core-id", 0)


async def count_plugged(machine: Machine, who: str) -> int:
    """The number of vCPUs plugged in. Raises ``GuestError``, which names ``who``."""
    return sum(slot.qom_path is not None for slot in await _slots(machine, who))


async def plug(machine: Machine, who: str, target: int, clock: Clock) -> None:
    """Hot-plug or unplug vCPUs until there are ``target``. Raises ``GuestError``, which names ``who``."""
    # Plug from the first core up, unplug from the last down; QEMU lists slots in no particular order.
    slots = sorted(await _slots(machine, who), key=lambda slot: slot.core)
    plugged, empty = ([cpu for cpu in slots if (cpu.qom_path is None) is is_empty] for is_empty in (False, True))
    for slot in empty[: max(0, target - len(plugged))]:
        # With NeonVM's own IDs, so that its controller can take over again.
        await machine.call("device_add", {"driver": slot.type, "id": f"cpu{slot.core}", **slot.props})
    # Boot CPUs are not under /machine/peripheral and cannot be unplugged.
    removable = [cpu.qom_path for cpu in reversed(plugged) if cpu.qom_path and cpu.qom_path.startswith(_PLUGGED)]
    for path in removable[: max(0, len(plugged) - target)]:
        await machine.call("device_del", {"id": path})
    deadline = Instant(clock.now() + _PLUG_SECONDS)
    # device_del returns before the guest has released the CPU, so poll.
    while (count := await count_plugged(machine, who)) != target:
        if clock.now() >= deadline:
            raise GuestError(texts.CPUS_NOT_PLUGGED.format(who=who, requested=target, count=count))
        await clock.sleep(_PLUG_PAUSE)


async def _slots(machine: Machine, who: str) -> list[_Slot]:
    try:
        return msgspec.convert(await machine.call("query-hotpluggable-cpus"), list[_Slot])
    except msgspec.ValidationError as error:
        raise GuestError(texts.QEMU_CPUS_UNKNOWN.format(who=who, error=error)) from error
