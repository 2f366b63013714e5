"""How fast a guest can run here: KVM where it really works, software emulation everywhere else.

``/dev/kvm`` alone proves nothing: it can exist, open and even make a VM, and still abort at the first virtual CPU
(nested virtualisation). So the probe starts QEMU with the CPU that a guest would get and looks whether it survives.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from deploy.neonvm.ports import GuestError
from protocol.units import Seconds

QEMU: Final = "qemu-system-x86_64"
MACHINE: Final = "pc-q35-7.2"
"""The machine's version is pinned, so that a guest can move between hosts with different QEMUs."""

_PROBE_SECONDS: Final = 10

EMULATED_DOWNTIME: Final = Seconds(0.1)
"""An emulated CPU asks whether a page is watched, and writes to it an instant later. Where it loses the host's CPU in
between, just when QEMU collects what has changed and sends it, the write is lost and the guest breaks at its new place.
So what changes while the memory is sent goes all at once, while the guest stands still, and not in rounds before.
"""


@dataclass(frozen=True, slots=True)
class Accelerator:
    """One way to run a guest: its QEMU arguments, what its kernel should know, and why it was chosen.

    ``least_downtime`` is how long a guest may stand still at least when it moves: see ``EMULATED_DOWNTIME``.
    """

    name: str
    arguments: Sequence[str]
    kernel: str
    reason: str
    least_downtime: Seconds = Seconds(0.0)


def _kvm(reason: str) -> Accelerator:
    return Accelerator("kvm", ("-accel", "kvm", "-cpu", "host"), "", reason)


def _tcg(reason: str) -> Accelerator:
    """Emulation: a small code cache per guest, and an emulated clock that the kernel need not calibrate."""
    arguments = ("-accel", "tcg,thread=multi,tb-size=64", "-cpu", "max")
    return Accelerator("tcg", arguments, "no_timer_check tsc=reliable clocksource=tsc", reason, EMULATED_DOWNTIME)


async def choose_accelerator() -> Accelerator:
    """The fastest accelerator that works here. Raises ``GuestError`` where QEMU itself is missing or too old."""
    if shutil.which(QEMU) is None:
        raise GuestError(
            f"{QEMU} is not installed; on Debian: sudo apt-get install --no-install-recommends "
            f"qemu-system-x86 qemu-utils (or choose --guests simulated, which needs no QEMU)"
        )
    if fault := _device_fault():
        return _tcg(f"software emulation: {fault}")
    if await _survives(_kvm("")):
        return _kvm("KVM: /dev/kvm works")
    return _tcg("software emulation: /dev/kvm is there, but a guest on it dies at once")


def _device_fault() -> str | None:
    if not Path("/dev/kvm").exists():
        return "there is no /dev/kvm"
    if not os.access("/dev/kvm", os.R_OK | os.W_OK):
        return "this user may not open /dev/kvm (sudo usermod -aG kvm $USER)"
    return None


async def _survives(accelerator: Accelerator) -> bool:
    """Whether a machine with this accelerator gets as far as its monitor."""
    process = await asyncio.create_subprocess_exec(
        QEMU, "-nodefaults", "-machine", MACHINE, *accelerator.arguments, "-m", "64", "-display", "none", "-S",
        "-monitor", "stdio",
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    try:
        async with asyncio.timeout(_PROBE_SECONDS):
            await process.communicate(b"quit\n")
    except TimeoutError:
        return False
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    return process.returncode == 0
