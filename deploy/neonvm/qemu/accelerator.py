"""Chooses the accelerator of this host: KVM if a guest boots on it, otherwise TCG.

With nested virtualization ``/dev/kvm`` may open and create a VM and a vCPU, and still not run an ordinary kernel. So
KVM is used only after a successful trial boot.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from deploy.neonvm.ports import GuestError
from protocol.units import Seconds

QEMU: Final = "qemu-system-x86_64"
MACHINE: Final = "pc-q35-7.2"
"""Pinned machine version, so that guests can migrate between hosts with different QEMU versions."""

KVM_DEVICE: Final = Path("/dev/kvm")

# Longer than on KVM: each release wakes QEMU, which takes CPU time from an emulated guest.
_EMULATED_FRAMES_HELD: Final = Seconds(0.02)


@dataclass(frozen=True, slots=True)
class Accelerator:
    """An accelerator: its QEMU arguments, kernel arguments, and the reason for choosing it. If ``is_emulated``, guests
    migrate in one pass (``TransferLimits.in_one_pass``). During a migration, frames are delayed by at most
    ``frames_held``.
    """

    name: str
    arguments: Sequence[str]
    kernel: str
    reason: str
    is_emulated: bool = False
    frames_held: Seconds = Seconds(0.001)


def kvm(reason: str) -> Accelerator:
    """KVM, with the host's CPU model."""
    return Accelerator("kvm", ("-accel", "kvm", "-cpu", "host"), "", reason)


def emulation(reason: str) -> Accelerator:
    """TCG, with a small translation cache, and a TSC that the kernel need not calibrate."""
    # The translation cache is 1 GiB by default, for each guest.
    arguments = ("-accel", "tcg,thread=multi,tb-size=64", "-cpu", "max")
    kernel = "no_timer_check tsc=reliable clocksource=tsc"
    return Accelerator("tcg", arguments, kernel, reason, is_emulated=True, frames_held=_EMULATED_FRAMES_HELD)


async def choose_accelerator(
    boot_fault: Callable[[Accelerator], Awaitable[str]], device: Path = KVM_DEVICE
) -> Accelerator:
    """The fastest accelerator on which a guest boots. ``boot_fault`` returns the reason why it does not, or an empty
    string. Raises ``GuestError`` if QEMU is not installed.
    """
    # First, because without QEMU any other reason would mislead.
    if shutil.which(QEMU) is None:
        raise GuestError(
            f"{QEMU} is not installed; on Debian: sudo apt-get install --no-install-recommends "
            f"qemu-system-x86 qemu-utils (or choose --guests simulated, which needs no QEMU)"
        )
    # A missing device or permission needs no trial, and its message has its own remedy.
    if fault := _device_fault(device):
        return emulation(f"software emulation: {fault}")
    if fault := await boot_fault(kvm("a trial")):
        return emulation(f"KVM: {device} opens but does not boot a guest ({fault}); emulating")
    return kvm(f"KVM: a guest boots on {device}")


def _device_fault(device: Path) -> str | None:
    if not device.exists():
        return f"there is no {device}"
    if not os.access(device, os.R_OK | os.W_OK):
        return f"no permission to open {device} (sudo usermod -aG kvm $USER; in a pod: docs/vms-on-kubernetes.md)"
    return None
