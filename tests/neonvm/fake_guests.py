"""Guests that run, receive and migrate on command; it counts how often two ran at once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from deploy.neonvm.network.loopback import LoopbackNetwork
from deploy.neonvm.ports import (
    FellAsleep,
    Guest,
    GuestError,
    GuestPhase,
    GuestSpec,
    GuestState,
    PodNetwork,
    SleepRefusedError,
    TransferError,
    TransferFault,
    Woken,
)
from deploy.neonvm.transfer_terms import TransferInfo, TransferLimits, TransferRam, TransferStatus
from protocol.messages import ObjectName
from protocol.units import Bytes, MilliCpu, Seconds

_GONE = GuestState(GuestPhase.STOPPED, MilliCpu(0), Bytes(0))
_ASLEEP = GuestState(GuestPhase.ASLEEP, MilliCpu(0), Bytes(0))


def progress_of(total: float, status: TransferStatus = TransferStatus.ACTIVE) -> TransferInfo:
    """A move after ``total`` seconds."""
    mi = 1024**2
    ram = TransferRam(512 * mi, 100 * mi, 3 * mi, 1000, 25600, 7, 2, 4096)
    return TransferInfo(status, Seconds(total), Seconds(0.01), Seconds(0.057), ram)


class FakeGuests:
    """All guests of a test: the latest one of each pod, by name."""

    def __init__(self) -> None:
        self.by_pod: dict[str, FakeGuest] = {}
        self.doubled: list[str] = []
        self.refuse_to_receive = ""
        self.error_at_start: Exception | None = None
        self.made = 0

    def create(self, spec: GuestSpec) -> Guest:
        self.made += 1
        guest = FakeGuest(spec, self)
        self.by_pod[spec.pod.name] = guest
        return guest

    @property
    def running(self) -> list[str]:
        """The pods in which a guest runs."""
        return sorted(name for name, each in self.by_pod.items() if each.has.phase is GuestPhase.RUNNING)

    @property
    def is_anyone_moving(self) -> bool:
        """True if any guest is being sent."""
        return any(each.move is not None for each in self.by_pod.values())

    @property
    def moving(self) -> FakeGuest:
        """The guest that is being sent."""
        (found,) = [each for each in self.by_pod.values() if each.move is not None]
        return found

    def note(self) -> None:
        """Called when a guest starts to run."""
        if len(self.running) > 1:
            self.doubled.append(" and ".join(self.running))


@dataclass
class _Move:
    target: FakeGuest
    limits: TransferLimits
    progress: Callable[[TransferInfo], None]
    end: asyncio.Future[TransferError | None] = field(default_factory=asyncio.Future)
    loses_source: bool = False


@dataclass
class FakeGuest:
    """One guest."""

    spec: GuestSpec
    flock: FakeGuests
    has: GuestState = _GONE
    move: _Move | None = None
    orders: list[str] = field(default_factory=list)
    switches_when_cancelled: bool = False
    is_mute: bool = False
    keeps_memory: bool = False
    stops: asyncio.Event | None = None
    over: asyncio.Event = field(default_factory=asyncio.Event)
    reason: str = ""
    refuses_to_sleep: str = ""
    called_by: str = ""
    called: asyncio.Event = field(default_factory=asyncio.Event)
    fault_at_waking: str = ""
    had: GuestState = _GONE

    async def start(self) -> None:
        if self.flock.error_at_start is not None:
            raise self.flock.error_at_start
        self._run(GuestState(GuestPhase.RUNNING, self.spec.cpu_use, self.spec.mem_use))

    async def ended(self) -> str:
        await self.over.wait()
        return self.reason

    async def receive(self) -> None:
        if self.flock.refuse_to_receive:
            raise GuestError(self.flock.refuse_to_receive)
        self.has = GuestState(GuestPhase.RECEIVING, self.spec.cpu_use, self.spec.mem_use)
        self.over.clear()

    async def send(
        self, target: Guest, limits: TransferLimits, progress: Callable[[TransferInfo], None]
    ) -> TransferInfo:
        assert isinstance(target, FakeGuest)
        if target.has.phase is not GuestPhase.RECEIVING:
            raise TransferError(TransferFault.TARGET_LOST, "the target is gone")
        if self.over.is_set():
            await target.stop()
            raise TransferError(TransferFault.SOURCE_LOST, "there is nothing to send")
        self.move = move = _Move(target, limits, progress)
        try:
            error = await move.end
        except asyncio.CancelledError:
            if self.switches_when_cancelled:
                self._switch(target)
            else:
                await target.stop()
            raise
        finally:
            self.move = None
        if error is None:
            self._switch(target)
            return progress_of(1.25, TransferStatus.COMPLETED)
        await target.stop()
        if move.loses_source:
            self._end("it was lost on its way")
        raise error

    def arrive(self) -> None:
        """The move succeeds."""
        assert self.move is not None
        self.move.end.set_result(None)

    def fail(self, fault: TransferFault, *, source_too: bool = False) -> None:
        """The migration fails; with ``source_too``, its source is lost."""
        assert self.move is not None
        self.move.loses_source = source_too
        self.move.end.set_result(TransferError(fault, f"injected: {fault}"))

    async def state(self) -> GuestState:
        if self.is_mute:
            raise GuestError("no answer")
        return self.has

    async def set_cpu(self, use: MilliCpu) -> MilliCpu | None:
        self.orders.append(f"cpu {use}")
        if self.stops is not None:
            await self.stops.wait()
        self.has = GuestState(self.has.phase, use, self.has.mem)
        return use

    async def set_memory(self, use: Bytes) -> None:
        self.orders.append(f"memory {use}")
        self.has = GuestState(self.has.phase, self.has.cpu, self.has.mem if self.keeps_memory else use)

    async def fall_asleep(self) -> FellAsleep:
        self.orders.append("fall asleep")
        if self.refuses_to_sleep:
            raise SleepRefusedError(self.refuses_to_sleep)
        self.had, self.has = self.has, _ASLEEP
        self.called.clear()
        return FellAsleep(Bytes(200 * 1024**2), 3)

    async def woken(self) -> str:
        await self.called.wait()
        return self.called_by

    def call(self, who: str) -> None:
        """A frame for the guest arrives."""
        self.called_by = who
        self.called.set()

    def boot(self) -> None:
        """A booting guest has booted."""
        self._run(GuestState(GuestPhase.RUNNING, self.has.cpu, self.has.mem))

    async def wake(self) -> Woken:
        self.orders.append("wake")
        if self.move is not None:
            raise GuestError("the guest is being migrated")
        phase = GuestPhase.BOOTING if self.fault_at_waking else GuestPhase.RUNNING
        self._run(GuestState(phase, self.had.cpu, self.had.mem))
        return Woken(Seconds(0.25), self.fault_at_waking)

    async def stop(self) -> None:
        self.die("it was stopped")

    def die(self, reason: str = "its process was killed") -> None:
        """The guest fails; a migration that involves it fails too."""
        self._end(reason)
        if self.move is not None and not self.move.end.done():
            self.fail(TransferFault.SOURCE_LOST, source_too=True)
        for other in self.flock.by_pod.values():
            if other.move is not None and other.move.target is self and not other.move.end.done():
                other.fail(TransferFault.TARGET_LOST)

    def _switch(self, target: FakeGuest) -> None:
        had = self.had if self.has.phase is GuestPhase.ASLEEP else self.has
        self._end("it was migrated away")
        target._run(had)

    def _end(self, reason: str) -> None:
        self.has = _GONE
        if not self.over.is_set():
            self.reason = reason
        self.over.set()

    def _run(self, state: GuestState) -> None:
        self.has = state
        self.over.clear()
        self.flock.note()


class PlainNetwork(LoopbackNetwork):
    """Only addresses; records attachments and releases."""

    def __init__(self) -> None:
        super().__init__("plain", "a test")
        self.plugged: dict[ObjectName, str] = {}
        self.released: list[ObjectName] = []
        self._count = 0

    async def add_pod(self, node: str, pod: ObjectName) -> PodNetwork:
        if pod not in self.plugged:
            self._count += 1
            self.plugged[pod] = f"10.1.0.{self._count}"
        address = self.plugged[pod]
        return PodNetwork(address, (), address, "10.1.255.1", ())

    async def remove_pod(self, pod: ObjectName) -> None:
        self.plugged.pop(pod, None)

    async def vm_address(self, vm: ObjectName) -> str:
        return "10.9.0.1"

    async def release_vm(self, vm: ObjectName) -> None:
        self.released.append(vm)
