"""A guest in a runner pod as a ``ResizableGuest``, asked and ordered through its runner, and its QEMU.

A pod that is open is asked as NeonVM's runner is: it says its CPU, and QEMU the memory. With ``QmpScaling`` that runner
only notes the CPU, which comes and goes in the slots of QEMU: the guest has those that are filled.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Final

import msgspec

from deploy.neonvm.access.connections import RunnerPlace
from deploy.neonvm.objects.booted import Booted
from deploy.neonvm.ports import Acceleration, GuestError, GuestPhase, GuestState
from deploy.neonvm.qemu.handover import TargetSays, target_says
from deploy.neonvm.qemu.machine import Machine, plug_memory
from deploy.neonvm.qemu.qemu_command import MEMORY_BLOCK
from deploy.neonvm.qemu.qemu_process import Hearings, Monitor
from deploy.neonvm.qemu.reports import parse_memory, parse_run_state
from deploy.neonvm.remote.runner_client import RunnerClient
from deploy.neonvm.runner.pod_runner import RunnerStatus
from deploy.neonvm.texts import controller as texts
from protocol.runtime.clock import Clock
from protocol.units import Bytes, Instant, MilliCpu, Seconds

Connect = Callable[[RunnerPlace], Awaitable[socket.socket]]
"""Opens a non-blocking connection to the monitor of a pod; raises ``OSError``."""

_CONNECT_SECONDS: Final = 3.0
_QUIT_SECONDS: Final = 3.0


class RemoteMachine(Hearings):
    """The QEMU of a runner pod as a ``Machine``, through the monitor that its pod offers; close it when done (``async
    with``). ``lives`` says whether its pod has not ended: a machine that does not answer may well live.
    """

    def __init__(self, place: RunnerPlace, connect: Connect, lives: Callable[[], bool]) -> None:
        super().__init__()
        self._who = place.who
        self._place = place
        self._connect = connect
        self._lives = lives
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
        """True if its pod may still have it."""
        return not self._has_quit and self._lives()

    async def call(self, command: str, arguments: Mapping[str, object] | None = None) -> object:
        """One command of the monitor. Raises ``GuestError``."""
        return await (await self._connected()).call(command, arguments)

    async def _connected(self) -> Monitor:
        # Two calls at once must not open two connections.
        async with self._connecting:
            if self._monitor is not None and self._monitor.is_up:
                return self._monitor
            if self._monitor is not None:
                # Made again with the next call. The broken call is not repeated: it may have been carried out.
                broken, self._monitor = self._monitor, None
                await broken.close()
            if not self.alive:
                raise GuestError(texts.QEMU_ENDED.format(who=self._who))
            monitor = Monitor(self._who, self)
            try:
                async with asyncio.timeout(_CONNECT_SECONDS):
                    end = await self._connect(self._place)
            except (OSError, TimeoutError) as error:
                raise GuestError(texts.QEMU_UNREACHABLE.format(who=self._who, error=error)) from error
            await monitor.connect(end)
            self._monitor = monitor
            return monitor

    async def give(self, name: str, end: socket.socket) -> None:  # noqa: ARG002 - a part of the port
        """A socket cannot be passed to another node. Raises ``GuestError``."""
        raise GuestError(texts.SOCKET_STAYS.format(who=self._who, name=name))

    async def wait_for_event(self, seconds: float) -> None:
        """Returns when QEMU stops, resumes or gets on with a migration, and after ``seconds`` at the latest."""
        if self._monitor is not None and self._monitor.is_up:
            await self._monitor.wait_for_event(seconds)
        else:
            # Without a connection there are no events; the caller looks again after the same time.
            await asyncio.sleep(seconds)

    def event_time(self, event: str) -> float | None:
        """The time when QEMU last reported ``event`` on any connection, in seconds since 1970; None if never."""
        latest = self._monitor.event_time(event) if self._monitor is not None else None
        if latest is not None:
            # A new connection has no history, so the last time is kept here.
            self._times[event] = latest
        return self._times.get(event)

    async def failed(self) -> str:
        """Not waited for here: the API shows the pod's end. Raises ``GuestError``."""
        raise GuestError(texts.POD_SAYS.format(who=self._who))

    def last_words(self) -> str:
        """Its pod has them."""
        return "its pod says why"

    async def kill(self) -> None:
        """Tells QEMU to quit. A machine that does not answer is not waited for: it takes no part in what follows."""
        try:
            async with asyncio.timeout(_QUIT_SECONDS):
                await self.call("quit")
        except (GuestError, TimeoutError):
            return
        self._has_quit = True

    async def end(self) -> None:
        """The same as ``kill``."""
        await self.kill()


_MEMORY_PAUSE: Final = Seconds(0.1)
_SHOWN: Final = 300
"""Characters of a runner's words that go into its VM's status."""


class RemoteGuest:
    """One guest. ``machine`` opens its QEMU's monitor, ``looked`` is called when it has been looked at first.
    ``booted`` says what its orders are relative to.
    """

    def __init__(
        self,
        runner: RunnerClient,
        machine: Callable[[], RemoteMachine],
        booted: Booted,
        clock: Clock,
        looked: Callable[[], None],
    ) -> None:
        self.runner = runner
        self.machine = machine
        self._booted = booted
        self._clock = clock
        self._looked = looked
        self._machine: RemoteMachine | None = None
        self._users = 0
        self.is_known = False
        self.acceleration: Acceleration | None = None

    async def state(self) -> GuestState:
        """The guest's present size. Raises ``GuestError``."""
        state = await self._of_neonvms_runner() if self.runner.place.is_open else self._read(await self.runner.status())
        if not self.is_known:
            self.is_known = True
            self._looked()
        return state

    def _read(self, status: RunnerStatus) -> GuestState:
        # Cut, because the pod's words go into a status.
        self.acceleration = Acceleration(status.accelerator == "kvm", status.reason[:_SHOWN])
        try:
            return GuestState(GuestPhase(status.phase), MilliCpu(status.cpu), Bytes(status.memory))
        except ValueError as error:
            raise GuestError(texts.RUNNER_PHASE_UNKNOWN.format(who=self.runner.who, phase=status.phase)) from error

    async def _of_neonvms_runner(self) -> GuestState:
        phase = GuestPhase.RUNNING if await self.runner.is_ready() else GuestPhase.BOOTING
        async with self._shared() as machine:
            # A readiness probe cannot tell a guest that boots from one that waits to be sent.
            if target_says(parse_run_state(await machine.call("query-status"))) is TargetSays.FILLING:
                phase = GuestPhase.RECEIVING
            memory = parse_memory(await machine.call("query-memory-size-summary"))
            plugged = await count_plugged(machine, self.runner.who) if self._booted.plugs_cpus else None
        cpu = await self.runner.cpu()
        if plugged is not None and plugged != cpu.whole_cpus:
            # Such a runner only repeats the order; QEMU knows the real number.
            cpu = MilliCpu(1000 * plugged)
        return GuestState(phase, cpu, memory)

    async def set_cpu(self, use: MilliCpu) -> MilliCpu | None:
        """Gives the guest this much CPU; what it then has, if its runner says so. Raises ``GuestError``."""
        if self.runner.place.is_open and self._booted.plugs_cpus:
            async with self._shared() as machine:
                # QEMU first: the runner only notes the order, as if it had been carried out.
                await plug(machine, self.runner.who, use.whole_cpus, self._clock)
        return await self.runner.set_cpu(use)

    async def set_memory(self, use: Bytes) -> None:
        """Plugs or unplugs memory (``plug_memory``). Raises ``GuestError``."""
        low, high = self._booted.machine.mem_min, self._booted.machine.mem_max
        if not low <= use <= high:
            raise GuestError(texts.MEMORY_OUT_OF_RANGE.format(who=self.runner.who, low=low, high=high, use=use))
        async with self._shared() as machine:
            await plug_memory(machine, (use - low).down_to(MEMORY_BLOCK), self._clock, _MEMORY_PAUSE)

    @asynccontextmanager
    async def _shared(self) -> AsyncIterator[RemoteMachine]:
        """One connection to QEMU for all that is asked at once."""
        # QEMU under a runner of NeonVM's serves one client at a time.
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
        """Never returns: the pod's end is what the API server says."""
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
    """The number of CPUs that the guest of ``who`` has. Raises ``GuestError``."""
    return sum(slot.qom_path is not None for slot in await _slots(machine, who))


async def plug(machine: Machine, who: str, wanted: int, clock: Clock) -> None:
    """Gives the guest of ``who`` this many CPUs. Raises ``GuestError``."""
    # Plugged in from the first slot and out from the last; QEMU promises no order.
    slots = sorted(await _slots(machine, who), key=lambda slot: slot.core)
    plugged, empty = ([cpu for cpu in slots if (cpu.qom_path is None) is is_empty] for is_empty in (False, True))
    for slot in empty[: max(0, wanted - len(plugged))]:
        # Under NeonVM's own names, so that its controller finds them when it is back.
        await machine.call("device_add", {"driver": slot.type, "id": f"cpu{slot.core}", **slot.props})
    # CPUs with which the machine booted have no name of this kind, and cannot be unplugged.
    removable = [cpu.qom_path for cpu in reversed(plugged) if cpu.qom_path and cpu.qom_path.startswith(_PLUGGED)]
    for path in removable[: max(0, len(plugged) - wanted)]:
        await machine.call("device_del", {"id": path})
    deadline = Instant(clock.now() + _PLUG_SECONDS)
    # A guest releases a CPU when it likes, so the order's answer says nothing.
    while (count := await count_plugged(machine, who)) != wanted:
        if clock.now() >= deadline:
            raise GuestError(texts.NOT_PLUGGED_IN.format(who=who, wanted=wanted, count=count))
        await clock.sleep(_PLUG_PAUSE)


async def _slots(machine: Machine, who: str) -> list[_Slot]:
    try:
        return msgspec.convert(await machine.call("query-hotpluggable-cpus"), list[_Slot])
    except msgspec.ValidationError as error:
        raise GuestError(texts.QEMU_CPUS_UNKNOWN.format(who=who, error=error)) from error
