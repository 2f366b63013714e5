"""Chooses how guests run here: on KVM if a guest boots on it, otherwise in software emulation.

``/dev/kvm`` may open and make a VM and a virtual CPU, and still not run an ordinary kernel (nested virtualisation).
So KVM is used only where a trial boot has shown that it works; a missing device or permission needs no trial.
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
"""The machine's version is pinned, so that a guest can move between hosts with different QEMUs."""

KVM_DEVICE: Final = Path("/dev/kvm")

# Longer than on KVM: each release wakes QEMU, which takes CPU time from an emulated guest.
_EMULATED_FRAMES_HELD: Final = Seconds(0.02)


@dataclass(frozen=True, slots=True)
class Accelerator:
    """One way to run a guest: its QEMU arguments, what its kernel should know, and why it was chosen. ``is_emulated``:
    a guest that moves is sent in one pass (``TransferLimits.in_one_pass``). Frames for a guest that moves are held for
    ``frames_held`` at most.
    """

    name: str
    arguments: Sequence[str]
    kernel: str
    reason: str
    is_emulated: bool = False
    frames_held: Seconds = Seconds(0.001)


def kvm(reason: str) -> Accelerator:
    """The host's own CPU."""
    return Accelerator("kvm", ("-accel", "kvm", "-cpu", "host"), "", reason)


def emulation(reason: str) -> Accelerator:
    """Emulation: a small code cache per guest, and an emulated clock that the kernel need not calibrate."""
    # The code cache is 1 GiB by default, which each guest would take from the node.
    arguments = ("-accel", "tcg,thread=multi,tb-size=64", "-cpu", "max")
    kernel = "no_timer_check tsc=reliable clocksource=tsc"
    return Accelerator("tcg", arguments, kernel, reason, is_emulated=True, frames_held=_EMULATED_FRAMES_HELD)


async def choose_accelerator(
    boot_fault: Callable[[Accelerator], Awaitable[str]], device: Path = KVM_DEVICE
) -> Accelerator:
    """The fastest accelerator on which a guest boots; ``boot_fault`` says why one does not, empty if it does. Raises
    ``GuestError`` if QEMU itself is missing.
    """
    # First of all: without it every other reason would mislead.
    if shutil.which(QEMU) is None:
        raise GuestError(
            f"{QEMU} is not installed; on Debian: sudo apt-get install --no-install-recommends "
            f"qemu-system-x86 qemu-utils (or choose --guests simulated, which needs no QEMU)"
        )
    # A missing device or permission is known without a trial, and has a remedy of its own.
    if fault := _device_fault(device):
        return emulation(f"software emulation: {fault}")
    if fault := await boot_fault(kvm("a trial")):
        return emulation(f"KVM: {device} opens but does not boot a guest ({fault}); emulating")
    return kvm(f"KVM: a guest boots on {device}")


def _device_fault(device: Path) -> str | None:
    if not device.exists():
        return f"there is no {device}"
    if not os.access(device, os.R_OK | os.W_OK):
        return f"this user may not open {device} (sudo usermod -aG kvm $USER; in a pod: docs/vms-on-kubernetes.md)"
    return None
