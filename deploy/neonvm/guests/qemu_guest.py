"""A postgres VM in QEMU as a ``Guest`` (S4.2): CPUs are onlined in the guest, memory is plugged with virtio-mem."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

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
from deploy.neonvm.qemu.accelerator import Accelerator
from deploy.neonvm.qemu.daemon import GuestDaemon
from deploy.neonvm.qemu.frame_handover import DirectHandover
from deploy.neonvm.qemu.handover import PAUSED_BY_MIGRATION, TargetState, target_state
from deploy.neonvm.qemu.machine import Hypervisor, Machine, plug_memory, plugged_memory
from deploy.neonvm.qemu.qemu_command import Files, inherited, launcher, plugged, qemu_command, receiving
from deploy.neonvm.qemu.reports import parse_run_state
from deploy.neonvm.qemu.transfer import Transfer, TransferEndpoints, run_to_completion
from deploy.neonvm.sleep.image import SleepImage, delete_leftover
from deploy.neonvm.sleep.metrics_page import fetch_metrics_page
from deploy.neonvm.sleep.migration_source import SleepingSource, sleeping_endpoints
from deploy.neonvm.sleep.network_stand_in import NetworkStandIn
from deploy.neonvm.sleep.sleeping import GuestSleep, SleepDependencies
from deploy.neonvm.sleep.stand_in import address_of, attachment_of, stand_in_for
from deploy.neonvm.sleep.suspend import Suspend, thaw
from deploy.neonvm.transfer_terms import TransferInfo, TransferLimits
from protocol.runtime.clock import Clock
from protocol.units import Bytes, MilliCpu, Seconds
from vm_image.build import GuestImage

_MEMORY_PAUSE: Final = Seconds(0.05)


@dataclass(frozen=True, slots=True)
class QemuTools:
    """Dependencies of a QEMU guest."""

    image: GuestImage
    accelerator: Accelerator
    sockets: PodSockets
    clock: Clock
    hypervisor: Hypervisor
    launcher: Callable[[Sequence[str]], list[str]] = launcher
    stand_in: Callable[[GuestSpec, bytes, Clock], NetworkStandIn] = stand_in_for


class QemuGuest:
    """One VM. Its disk stays in the state directory and is used again by the next ``start``."""

    def __init__(self, spec: GuestSpec, tools: QemuTools) -> None:
        self._spec = spec
        self._tools = tools
        self._machine: Machine | None = None
        self.is_booted = self._receives = self._is_moving = False
        self.asleep: GuestSleep | None = None
        self._last_sleep: GuestSleep | None = None  # relays the sessions that woke the guest at its pod's address
        self._falling = asyncio.Lock()
        self._daemon = GuestDaemon(spec, tools.sockets)

    async def start(self) -> None:
        """Start QEMU on the VM's disk; the guest then boots for some seconds. Raises ``GuestError``."""
        if self._alive() is None:
            await self._launch()
        elif self._receives:
            raise GuestError(f"{self._spec.vm}: the guest is waiting for an incoming migration")

    async def receive(self) -> None:
        """Start QEMU for an incoming migration, on a disk that the source still uses. Raises ``GuestError``."""
        if self._alive() is None:
            await self._launch(receiving(self._spec))

    async def send(
        self, target: Guest, limits: TransferLimits, progress: Callable[[TransferInfo], None]
    ) -> TransferInfo:
        """Migrate the guest, awake or asleep, to another process. Raises ``GuestError`` and ``TransferError``."""
        with ExitStack() as announcements:
            try:
                receiver = self._receiver(target)
                transfer = self._transfer(receiver, limits, progress, announcements)
            except GuestError:
                if isinstance(target, QemuGuest) and target._receives and not target._is_moving:
                    # Otherwise the target would wait forever.
                    await target.stop()
                raise
            return await run_to_completion(self._moved(transfer, receiver), transfer.cancel)

    async def state(self) -> GuestState:
        """The guest's state; running means that its database accepts connections. Raises ``GuestError``."""
        if self.asleep is not None:
            return self.asleep.state
        machine = self._alive()
        if machine is None:
            return GuestState(GuestPhase.STOPPED, MilliCpu(0), Bytes(0))
        if self._receives:
            # The guest is not running, so its daemon cannot respond.
            return GuestState(GuestPhase.RECEIVING, self._spec.cpu_use, self._spec.mem_use)
        memory = await self._memory(machine)
        if not self.is_booted and not await self._daemon.is_ready():
            return GuestState(GuestPhase.BOOTING, self._spec.cpu_use, memory)
        self.is_booted = True
        return GuestState(GuestPhase.RUNNING, await self._daemon.cpu(), memory)

    async def paused_state(self) -> GuestState | None:
        """Last known size of a guest that is paused because it was sent; None for all others. Raises ``GuestError``."""
        machine = self._alive()
        if machine is None or self._receives:
            return None
        if parse_run_state(await machine.call("query-status")) not in PAUSED_BY_MIGRATION:
            return None
        phase = GuestPhase.RUNNING if self.is_booted else GuestPhase.BOOTING
        return GuestState(phase, self._daemon.last_cpu, await self._memory(machine))

    async def set_cpu(self, use: MilliCpu) -> MilliCpu | None:
        """Online CPUs in the guest and set the quota for the fraction; return what it then reports. Raises
        ``GuestError``.
        """
        if not MilliCpu(0) < use <= self._spec.cpu_max:
            raise GuestError(f"{self._spec.vm}: CPU must be above zero and at most {self._spec.cpu_max}, not {use}")
        return await self.daemon.switch_cpu(use)

    async def set_memory(self, use: Bytes) -> None:
        """Plug or unplug memory (``plug_memory``); ``state`` has the result. Raises ``GuestError``."""
        # Validate the size even without a memory device.
        wanted, machine = plugged(self._spec, use), self.machine
        if self._spec.mem_max == self._spec.mem_min:
            return
        await plug_memory(machine, wanted, self._tools.clock, _MEMORY_PAUSE)

    async def set_password(self, password: str) -> None:
        """Set the database's password, without which a booting guest is not ready. Raises ``GuestError``."""
        self._daemon.password = password
        if self.is_booted:
            await self.daemon.send_password()

    async def ended(self) -> str:
        """Wait until the guest has failed; return the reason, the end of QEMU's output, and the last lines of the
        console. Raises ``GuestError`` if it was never started.
        """
        if self._machine is None:
            raise GuestError(f"{self._spec.vm}: the guest was not started")
        while True:
            machine = self._machine
            reason = await machine.failed()
            async with self._falling:
                if self.asleep is not None:
                    await self.asleep.is_over.wait()
            # After a sleep, or a failed attempt, the guest runs in a new QEMU process.
            if self._machine is machine:
                message = f"{reason}; QEMU said {machine.output_tail()}; its console said "
                return message + Files.of(self._spec).console_tail()

    async def arrived(self) -> bool:
        """Return True if the guest runs here, even if another process drove the migration. Raises ``GuestError``."""
        machine = self._alive()
        if machine is not None and self._receives and not self._is_moving:
            answer, has_run = await machine.call("query-status"), machine.event_time("RESUME") is not None
            self._receives = target_state(parse_run_state(answer), has_run=has_run) is not TargetState.RUNS
        return machine is not None and not self._receives

    @property
    def max_plugged(self) -> Bytes:
        """Maximum of plugged memory, beyond the boot memory."""
        return self._spec.mem_max - self._spec.mem_min

    @property
    def machine(self) -> Machine:
        """The QEMU machine. Raises ``GuestError`` if it has ended."""
        machine = self._alive()
        if machine is None:
            raise GuestError(f"{self._spec.vm}: the guest has stopped")
        return machine

    @property
    def daemon(self) -> GuestDaemon:
        """The daemon in the guest. Raises ``GuestError`` if QEMU has ended."""
        _ = self.machine
        return self._daemon

    async def stop(self) -> None:
        """End QEMU and wait until it is gone. The disk stays, and so does a log that is not empty."""
        if self.asleep is not None:
            await self.asleep.abandon()
            self.asleep = None
        if self._machine is not None:
            await self._machine.end()
            self._machine = None
            Files.of(self._spec).delete_empty_log()

    async def fall_asleep(self) -> FellAsleep:
        """Save the guest's memory and end QEMU. Raises ``SleepRefusedError`` if the guest keeps running."""
        if self.asleep is None:
            machine = self._sleepable()
            # Blocks migrations meanwhile.
            self._is_moving = True
            try:
                async with self._falling:
                    self.asleep = await self._suspend(machine)
                    await machine.end()
            finally:
                self._is_moving = False
                # Also after cancellation: the guest is asleep, and a frame must be able to wake it.
                if self.asleep is not None:
                    self.asleep.begin()
        return self.asleep.snapshot

    async def woken(self) -> str:
        """Wait until the sleeping guest must wake; return sender and reason. Raises ``GuestError``."""
        return await self._asleep().woken()

    async def wake(self) -> Woken:
        """Resume the sleeping guest, or boot it if its memory cannot be restored. Raises ``GuestError``."""
        if self._is_moving:
            raise GuestError(f"{self._spec.vm}: the guest is being migrated")
        return await self._asleep().wake()

    def _adopt(self, machine: Machine, woken: Woken) -> None:
        self._last_sleep = self.asleep
        self._machine, self.asleep, self._receives, self.is_booted = machine, None, False, not woken.fault

    def _asleep(self) -> GuestSleep:
        if self.asleep is not None:
            return self.asleep
        raise GuestError(f"{self._spec.vm}: the guest is not asleep")

    def _sleepable(self) -> Machine:
        """QEMU of a guest that may fall asleep. Raises ``SleepRefusedError``."""
        machine, vm = self._alive(), self._spec.vm
        if not self._spec.address:
            raise SleepRefusedError(f"{vm} is not on the flat network (spec.extraNetwork): its sessions would break")
        if machine is None or self._receives or not self.is_booted or self._is_moving:
            raise SleepRefusedError(f"{vm} is not running, or is being migrated")
        return machine

    async def _suspend(self, machine: Machine) -> GuestSleep:
        spec, tools = self._spec, self._tools
        # If it has to boot, it must not get more than it had.
        self._spec = replace(spec, cpu_use=self._daemon.last_cpu, mem_use=spec.mem_min)
        clock, disk, boot, has_device = tools.clock, Files.of(spec).disk, self._launch, bool(self.max_plugged)
        stand_in = tools.stand_in(spec, await fetch_metrics_page(spec, tools.sockets), clock)
        image, held_for = SleepImage(spec.state_dir, spec.storage_limit), tools.accelerator.frames_held
        vm, daemon = str(spec.vm), self._daemon
        suspend = Suspend(vm, machine, daemon, stand_in, image, clock, held_for, disk, has_device, boot)
        deps = SleepDependencies(stand_in, image, clock, self._process, boot, partial(thaw, daemon, clock), self._adopt)
        return GuestSleep(await suspend.run(), deps)

    async def _launch(self, more: Sequence[str] = ()) -> Machine:
        """Start a machine on the VM's disk, which is created if necessary. Raises ``GuestError``."""
        spec, tools = self._spec, self._tools
        files = Files.of(spec)
        if self._machine is not None:
            await self._machine.kill()  # its guest has failed, but the process may still have the disk open
        try:
            spec.state_dir.mkdir(parents=True, exist_ok=True)
            if not more:
                delete_leftover(spec.state_dir)
                # A receiving process appends to the console, which the source still writes to.
                files.rotate_console()
            if not files.disk.exists():
                await tools.hypervisor.make_disk(files.disk, tools.image.disk)
            self._machine = machine = await self._process(more, ())
        except OSError as error:
            raise GuestError(f"{spec.vm}: cannot start the guest in {spec.state_dir}: {error}") from error
        self._receives, self.is_booted = bool(more), False
        return machine

    async def _process(self, more: Sequence[str], inherit: Sequence[int]) -> Machine:
        spec, command = self._spec, partial(self._command, more=more)
        launch, descriptors = self._tools.hypervisor.launch, (*inherited(spec), *inherit)
        return await launch(str(spec.vm), command, Files.of(spec).log, descriptors)

    def _command(self, monitor_fd: int, more: Sequence[str]) -> list[str]:
        qemu = qemu_command(self._spec, self._tools.image, self._tools.accelerator, monitor_fd)
        return [*self._tools.launcher(self._spec.network.enter), *qemu, *more]

    def _receiver(self, target: Guest) -> QemuGuest:
        """``target``, if the guest can be migrated to it. Raises ``GuestError`` and ``TransferError``."""
        if self._is_moving or (self.asleep is not None and self.asleep.is_waking):
            raise GuestError(f"{self._spec.vm}: the guest is being migrated, or is waking")
        if not isinstance(target, QemuGuest) or not target._receives:
            raise self._refused("the target is not receiving")
        # Both ends must share the disk.
        if (target._spec.vm, target._spec.state_dir) != (self._spec.vm, self._spec.state_dir):
            raise self._refused(f"the target belongs to {target._spec.vm}")
        return target

    def _transfer(
        self, target: QemuGuest, limits: TransferLimits, progress: Callable[[TransferInfo], None], held: ExitStack
    ) -> Transfer:
        """The migration to ``target``. Raises ``GuestError`` and ``TransferError``."""
        sleep, clock, receiver = self.asleep, self._tools.clock, target._alive()
        source = self._alive() if sleep is None else SleepingSource(sleep, clock)
        if source is None or self._receives:
            raise GuestError(f"{self._spec.vm}: the guest has stopped")
        if receiver is None:
            raise TransferError(TransferFault.TARGET_LOST, f"{self._spec.vm}: the target is gone")
        try:
            # Opened in advance, because there is no time for it while the guest is paused.
            announcing = self._tools.sockets.announcing
            to_source, to_target = (
                held.enter_context(announcing(guest._spec.pod, guest._spec.address)) for guest in (self, target)
            )
        except NetworkError as error:
            raise self._refused(str(error)) from error
        if self._tools.accelerator.is_emulated:
            limits = limits.in_one_pass()
        frames = DirectHandover(source, receiver, clock, self._tools.accelerator.frames_held)
        ends = TransferEndpoints(str(self._spec.vm), source, receiver, clock, to_source, to_target, frames)
        if sleep is not None:
            ends = sleeping_endpoints(ends, sleep, attachment_of(target._spec, address_of(target._spec)).header_size)
        return Transfer(ends, limits, progress)

    async def _moved(self, transfer: Transfer, target: QemuGuest) -> TransferInfo:
        """Run the migration; afterwards both ends know which of them has the guest."""
        # Until the migration ends, `arrived` must not conclude from a run state that the guest is here.
        self._is_moving = target._is_moving = True
        try:
            info = await transfer.run()
            # The guest keeps its boot progress.
            target._receives, target.is_booted = False, self.is_booted
            if self.asleep is not None:
                await thaw(target._daemon, self._tools.clock)
            return info
        finally:
            self._is_moving = target._is_moving = False
            if self.asleep is not None and self.asleep.is_over.is_set():
                self.asleep = None

    def _refused(self, why: str) -> TransferError:
        return TransferError(TransferFault.REFUSED, f"{self._spec.vm}: {why}")

    def _alive(self) -> Machine | None:
        return self._machine if self._machine is not None and self._machine.alive else None

    async def _memory(self, machine: Machine) -> Bytes:
        return self._spec.mem_min + (await plugged_memory(machine) if self.max_plugged else Bytes(0))
