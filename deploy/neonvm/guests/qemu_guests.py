"""Factory of QEMU guests, which use the fastest accelerator that boots a guest on this host."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from deploy.neonvm.guests.qemu_guest import QemuGuest, QemuTools
from deploy.neonvm.ports import Guest, GuestError, GuestSpec, PodSockets
from deploy.neonvm.qemu.accelerator import Accelerator, choose_accelerator
from deploy.neonvm.qemu.boot_trial import BootTrial
from deploy.neonvm.qemu.qemu_command import launcher, trial_command
from deploy.neonvm.qemu.qemu_process import Qemu
from protocol.runtime.clock import Clock
from vm_image.build import GuestImage
from vm_image.store import cache_root


@dataclass(frozen=True, slots=True)
class QemuGuests(QemuTools):
    """Factory of QEMU guests. ``description`` names the accelerator's reason."""

    @classmethod
    async def prepare(cls, image: GuestImage, sockets: PodSockets, clock: Clock) -> QemuGuests:
        """Choose the accelerator of this host. Raises ``GuestError`` if QEMU is not installed."""
        if shutil.which("qemu-img") is None:
            raise GuestError("qemu-img is not installed; on Debian: sudo apt-get install qemu-utils")
        accelerator = await proven_accelerator(image)
        return cls(image, accelerator, sockets, clock, Qemu())

    @property
    def description(self) -> str:
        """One line for users."""
        return f"QEMU guests ({self.accelerator.reason})"

    def create(self, spec: GuestSpec) -> Guest:
        """Create a guest without starting it; no side effects."""
        return QemuGuest(spec, self)


async def proven_accelerator(
    image: GuestImage, launcher: Callable[[Sequence[str]], list[str]] = launcher
) -> Accelerator:
    """The fastest accelerator on which ``image`` boots. Raises ``GuestError`` if QEMU is not installed."""
    trial = BootTrial(Qemu(), image, cache_root() / "accelerators", time.time)

    async def boot_fault(accelerator: Accelerator) -> str:
        return await trial.fault(lambda fd, console: [*launcher(()), *trial_command(image, accelerator, fd, console)])

    return await choose_accelerator(boot_fault)
