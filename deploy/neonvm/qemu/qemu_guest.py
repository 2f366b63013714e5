"""A real postgres VM in QEMU behind the guest port (S4.2): CPUs switched in the guest, memory by virtio-mem."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Final

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
from deploy.neonvm.qemu.accelerator import Accelerator, choose_accelerator
from deploy.neonvm.qemu.boot_trial import BootTrial
from deploy.neonvm.qemu.daemon import GuestDaemon
from deploy.neonvm.qemu.frame_handover import DirectHandover
from deploy.neonvm.qemu.handover import HELD_BY_THE_MOVE, TargetSays, target_says
from deploy.neonvm.qemu.machine import PLUGGED, Hypervisor, Machine, plug_memory
from deploy.neonvm.qemu.qemu_command import Files, launcher, plugged, qemu_command, receiving, trial_command
from deploy.neonvm.qemu.qemu_process import Qemu
from deploy.neonvm.qemu.reports import parse_run_state
from deploy.neonvm.qemu.transfer import Transfer, TransferEndpoints, carried_through
from deploy.neonvm.transfer_terms import TransferInfo, TransferLimits
from protocol.runtime.clock import Clock
from protocol.units import Bytes, MilliCpu, Seconds
from vm_image.build import GuestImage
from vm_image.store import cache_root

_MEMORY_PAUSE: Final = Seconds(0.05)


@dataclass(frozen=True, slots=True)
class QemuGuests:
    """Makes real guests. ``description`` says how fast they can be here and why."""

    image: GuestImage
    accelerator: Accelerator
    sockets: PodSockets
    clock: Clock
    hypervisor: Hypervisor
    launcher: Callable[[Sequence[str]], list[str]] = launcher

    @classmethod
    async def prepare(cls, image: GuestImage, sockets: PodSockets, clock: Clock) -> QemuGuests:
        """Finds out how guests run best here. Raises ``GuestError`` if they cannot."""
        if shutil.which("qemu-img") is None:
            raise GuestError("qemu-img is not installed; on Debian: sudo apt-get install qemu-utils")
        accelerator = await proven_accelerator(image)
        return cls(image, accelerator, sockets, clock, Qemu())

    @property
    def description(self) -> str:
        """One line for people."""
        return f"QEMU guests ({self.accelerator.reason})"

    def create(self, spec: GuestSpec) -> Guest:
        """A guest that is ready to be started; touches nothing yet."""
        return QemuGuest(spec, self)


async def proven_accelerator(
    image: GuestImage, launcher: Callable[[Sequence[str]], list[str]] = launcher
) -> Accelerator:
    """The fastest accelerator on which ``image`` boots here. Raises ``GuestError`` if QEMU is missing."""
    trial = BootTrial(Qemu(), image, cache_root() / "accelerators", time.time)

    async def boot_fault(accelerator: Accelerator) -> str:
        return await trial.fault(lambda fd, console: [*launcher(()), *trial_command(image, accelerator, fd, console)])

    return await choose_accelerator(boot_fault)


class QemuGuest:
    """One VM. A second ``start`` on the same state directory finds the same disk."""

    def __init__(self, spec: GuestSpec, made_by: QemuGuests) -> None:
        self._spec = spec
        self._made_by = made_by
        self._machine: Machine | None = None
        self._ready = False
        self._receives = False
        self._is_moving = False
        self._daemon = GuestDaemon(spec, made_by.sockets)

    async def start(self) -> None:
        """Launches QEMU on the VM's own disk; the guest then boots for some seconds. Raises ``GuestError``."""
        if self._alive() is None:
            await self._launch(())
        elif self._receives:
            raise GuestError(f"{self._spec.vm}: the guest waits for another one to be sent to it")

    async def receive(self) -> None:
        """Launches QEMU on the VM's disk, which another process still uses. Raises ``GuestError``."""
        if self._alive() is None:
            await self._launch(receiving(self._spec))

    async def send(
        self, target: Guest, limits: TransferLimits, progress: Callable[[TransferInfo], None]
    ) -> TransferInfo:
        """Moves the guest to another process by QEMU's migration. Raises ``GuestError`` and ``TransferError``."""
        with ExitStack() as announcements:
            try:
                receiver = self._receiver(target)
                transfer = self._transfer(receiver, limits, progress, announcements)
            except GuestError:
                if isinstance(target, QemuGuest) and target._receives and not target._is_moving:
                    # A target whose move never began would wait for ever.
                    await target.stop()
                raise
            return await carried_through(self._moved(transfer, receiver), transfer.call_off)

    async def state(self) -> GuestState:
        """The guest's present size; running means that its database accepts connections. Raises ``GuestError``."""
        machine = self._alive()
        if machine is None:
            return GuestState(GuestPhase.STOPPED, MilliCpu(0), Bytes(0))
        if self._receives:
            # Its kernel does not run, so nobody can be asked.
            return GuestState(GuestPhase.RECEIVING, self._spec.cpu_use, self._spec.mem_use)
        memory = await self._memory(machine)
        if not self._ready and not await self._daemon.is_ready():
            return GuestState(GuestPhase.BOOTING, self._spec.cpu_use, memory)
        self._ready = True
        return GuestState(GuestPhase.RUNNING, await self._daemon.cpu(), memory)

    async def standing(self) -> GuestState | None:
        """Last known size of a guest that is paused because it was sent; None for all others. Raises ``GuestError``."""
        machine = self._alive()
        if machine is None or self._receives:
            return None
        if parse_run_state(await machine.call("query-status")) not in HELD_BY_THE_MOVE:
            return None
        phase = GuestPhase.RUNNING if self._ready else GuestPhase.BOOTING
        return GuestState(phase, self._daemon.last_cpu, await self._memory(machine))

    async def set_cpu(self, use: MilliCpu) -> MilliCpu | None:
        """Switches CPUs in the guest and sets the quota for the fraction; what it then says that it has. Raises
        ``GuestError``.
        """
        if not MilliCpu(0) < use <= self._spec.cpu_max:
            raise GuestError(f"{self._spec.vm}: CPU must be above zero and at most {self._spec.cpu_max}, not {use}")
        return await self.daemon.switch_cpu(use)

    async def set_memory(self, use: Bytes) -> None:
        """Plugs or unplugs memory (``plug_memory``); ``state`` says how far the guest came. Raises ``GuestError``."""
        # Checked even if there is no memory device, so that a wrong size is refused either way.
        wanted, machine = plugged(self._spec, use), self.machine
        if self._spec.mem_max == self._spec.mem_min:
            return
        await plug_memory(machine, wanted, self._made_by.clock, _MEMORY_PAUSE)

    async def set_password(self, password: str) -> None:
        """Sets the password of the database's accounts; a guest that boots is ready once it has it. Raises
        ``GuestError``.
        """
        self._daemon.password = password
        if self._ready:
            await self.daemon.send_password()

    async def ended(self) -> str:
        """Returns once the guest cannot go on: why, what its process complained about, and its console's last lines.
        Raises ``GuestError`` if it was never started.
        """
        machine = self._machine
        if machine is None:
            raise GuestError(f"{self._spec.vm}: the guest was not started")
        reason = await machine.failed()
        return f"{reason}; QEMU said {machine.last_words()}; its console said {Files.of(self._spec).console_said()}"

    async def arrived(self) -> bool:
        """Return True if the guest runs, if need be because another process, such as the controller, told it to. Raises
        ``GuestError``.
        """
        machine = self._alive()
        if machine is not None and self._receives and not self._is_moving:
            answer = await machine.call("query-status")
            self._receives = target_says(parse_run_state(answer)) is not TargetSays.RUNS
        return machine is not None and not self._receives

    @property
    def most_plugged(self) -> Bytes:
        """Memory that may be plugged in beside what the guest boots with."""
        return self._spec.mem_max - self._spec.mem_min

    @property
    def machine(self) -> Machine:
        """Its QEMU. Raises ``GuestError``."""
        machine = self._alive()
        if machine is None:
            raise GuestError(f"{self._spec.vm}: the guest has stopped")
        return machine

    @property
    def daemon(self) -> GuestDaemon:
        """The daemon in the guest. Raises ``GuestError`` if QEMU has ended: nobody would answer."""
        _ = self.machine
        return self._daemon

    async def stop(self) -> None:
        """Ends QEMU; the disk stays, and so does a log that says something. Returns when the process is gone."""
        if self._machine is not None:
            await self._machine.end()
            self._machine = None
            log = Files.of(self._spec).log
            # An empty log explains nothing, and there is one for each pod that the VM ever had.
            if log.exists() and not log.stat().st_size:
                log.unlink()

    async def _launch(self, more: Sequence[str]) -> None:
        """A machine on the VM's disk, which is made if there is none. Raises ``GuestError``."""
        spec, made_by = self._spec, self._made_by
        files = Files.of(spec)
        if self._machine is not None:
            await self._machine.kill()  # its guest cannot go on, but its process may still hold the disk
        try:
            spec.state_dir.mkdir(parents=True, exist_ok=True)
            if not more:
                # A receiving process appends to the console that the source still writes.
                files.begin_console()
            if not files.disk.exists():
                await made_by.hypervisor.make_disk(files.disk, made_by.image.disk)
            self._machine = await made_by.hypervisor.launch(str(spec.vm), lambda fd: self._command(fd, more), files.log)
        except OSError as error:
            raise GuestError(f"{spec.vm}: the guest cannot be started in {spec.state_dir}: {error}") from error
        self._receives, self._ready = bool(more), False

    def _command(self, monitor_fd: int, more: Sequence[str]) -> list[str]:
        spec, made_by = self._spec, self._made_by
        qemu = qemu_command(spec, made_by.image, made_by.accelerator, monitor_fd)
        return [*made_by.launcher(spec.network.enter), *qemu, *more]

    def _receiver(self, target: Guest) -> QemuGuest:
        """``target``, if both ends are fit for a move. Raises ``GuestError`` and ``TransferError``."""
        if self._is_moving:
            raise GuestError(f"{self._spec.vm}: the guest is on its way already")
        if not isinstance(target, QemuGuest) or not target._receives:
            raise self._refused("the other end does not receive")
        # Both ends must share the disk: the guest would otherwise go on with another one.
        if (target._spec.vm, target._spec.state_dir) != (self._spec.vm, self._spec.state_dir):
            raise self._refused(f"the other end is {target._spec.vm}'s")
        return target

    def _transfer(
        self, target: QemuGuest, limits: TransferLimits, progress: Callable[[TransferInfo], None], held: ExitStack
    ) -> Transfer:
        """The move to ``target``. Raises ``GuestError`` and ``TransferError``."""
        source, receiver = self._alive(), target._alive()
        if source is None or self._receives:
            raise GuestError(f"{self._spec.vm}: the guest has stopped")
        if receiver is None:
            raise TransferError(TransferFault.TARGET_LOST, f"{self._spec.vm}: the other end is gone")
        try:
            # Opened before the move, because at the stop of the guest there is no time for it.
            announcing = self._made_by.sockets.announcing
            here, there = (
                held.enter_context(announcing(guest._spec.pod, guest._spec.address)) for guest in (self, target)
            )
        except NetworkError as error:
            raise self._refused(str(error)) from error
        if self._made_by.accelerator.is_emulated:
            limits = limits.in_one_pass()
        clock, held_for = self._made_by.clock, self._made_by.accelerator.frames_held
        frames = DirectHandover(source, receiver, clock, held_for)
        ends = TransferEndpoints(str(self._spec.vm), source, receiver, clock, here, there, frames)
        return Transfer(ends, limits, progress)

    async def _moved(self, transfer: Transfer, target: QemuGuest) -> TransferInfo:
        """Runs the move to its end; afterwards both know which of them has the guest."""
        # Until the move ends, nobody else must conclude from a run state that the guest has arrived.
        self._is_moving = target._is_moving = True
        try:
            info = await transfer.run()
            # The guest goes on as far booted as it was.
            target._receives, target._ready = False, self._ready
        finally:
            self._is_moving = target._is_moving = False
        return info

    def _refused(self, why: str) -> TransferError:
        return TransferError(TransferFault.REFUSED, f"{self._spec.vm}: {why}")

    def _alive(self) -> Machine | None:
        return self._machine if self._machine is not None and self._machine.alive else None

    async def _memory(self, machine: Machine) -> Bytes:
        if self._spec.mem_max == self._spec.mem_min:
            return self._spec.mem_min
        # Asked each time: QEMU's event for a change is rate-limited.
        size = await machine.call("qom-get", PLUGGED)
        if not isinstance(size, int):
            raise GuestError(f"{self._spec.vm}: QEMU's memory device has the size {size!r}")
        return self._spec.mem_min + Bytes(size)
