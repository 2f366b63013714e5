"""An accelerator is proven by a boot, once for each host, QEMU, kernel and initrd. A small program plays QEMU."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from deploy.neonvm.ports import GuestError
from deploy.neonvm.qemu.accelerator import Accelerator, choose_accelerator
from deploy.neonvm.qemu.boot_trial import BootTrial
from deploy.neonvm.qemu.machine import Machine
from deploy.neonvm.qemu.qemu_process import Qemu
from tests.neonvm.qemu.fakes import FakeHypervisor
from vm_image.build import FIRST_LINE, GuestImage

_GREETING = """
import json, socket, sys, time
monitor = socket.socket(fileno=int(sys.argv[1]))
def say(what):
    monitor.sendall(json.dumps(what).encode() + b"\\n")
say({"QMP": {"version": {"qemu": {"major": 7, "minor": 2, "micro": 0}, "package": ""}, "capabilities": []}})
def answer(what):
    say({"return": what, "id": json.loads(monitor.recv(65536)).get("id")})
answer({})
"""
BOOTS = f"open(sys.argv[2], 'a').write({FIRST_LINE + chr(10)!r}); time.sleep(60)"
STOPS = """
print("KVM internal error. Suberror: 1", flush=True)
say({"event": "STOP", "timestamp": {"seconds": 1, "microseconds": 0}})
answer({"status": "internal-error", "running": False})
time.sleep(60)
"""
DIES = "sys.exit('no room for a second kernel')"
HANGS = "time.sleep(60)"


class CountingQemu(Qemu):
    """Counts launches."""

    def __init__(self) -> None:
        super().__init__()
        self.launches = 0

    async def launch(
        self, who: str, command: Callable[[int], Sequence[str]], log: Path, inherit: Sequence[int] = ()
    ) -> Machine:
        self.launches += 1
        return await super().launch(who, command, log, inherit)


@pytest.fixture
def trial(tmp_path: Path) -> BootTrial:
    image = GuestImage(tmp_path / "vmlinuz", tmp_path / "initrd", tmp_path / "rootfs.raw")
    image.kernel.write_bytes(b"kernel")
    image.initrd.write_bytes(b"initrd")
    return BootTrial(CountingQemu(), image, tmp_path / "accelerators", lambda: 1000.0)


async def fault(trial: BootTrial, played: str) -> tuple[str, int]:
    """The fault found in a QEMU that behaves as ``played``, and the number of launches so far."""

    def command(fd: int, console: Path) -> list[str]:
        return [sys.executable, "-c", f"{_GREETING}{played}", str(fd), str(console), "qemu-system-x86_64"]

    found = await trial.fault(command)
    assert isinstance(trial.hypervisor, CountingQemu)
    return found, trial.hypervisor.launches


@pytest.fixture(autouse=True)
def named_qemu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A QEMU that only knows its version."""
    program = tmp_path / "bin" / "qemu-system-x86_64"
    program.parent.mkdir()
    _name(program, "7.2.22")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
    return program


def _name(program: Path, version: str) -> None:
    program.write_text(f"#!/bin/sh\necho QEMU emulator version {version}\n")


async def test_successful_boot_trial_is_remembered(trial: BootTrial) -> None:
    assert await fault(trial, BOOTS) == ("", 1)
    assert await fault(replace(trial), BOOTS) == ("", 1)


async def test_stopped_cpu_fails_trial_with_reason(trial: BootTrial) -> None:
    reason = "internal-error: KVM cannot execute an instruction of the guest; KVM internal error. Suberror: 1"
    assert await fault(replace(trial, limit=30.0), STOPS) == (reason, 1)
    assert await fault(trial, STOPS) == (reason, 1)


async def test_a_machine_whose_process_ends_does_not_boot(trial: BootTrial) -> None:
    found, launches = await fault(replace(trial, limit=30.0), DIES)
    assert found.endswith("no room for a second kernel")
    assert launches == 1


async def test_machine_without_monitor_fails_trial(trial: BootTrial) -> None:
    output = "QEMU was killed by SIGABRT: qemu-system-x86_64: error: no MSR qemu-system-x86_64: x.c:1"
    reason = f"trial: no monitor; its output: {output}"
    refused = FakeHypervisor(fault=GuestError(reason))
    found = await replace(trial, hypervisor=refused).fault(lambda *_: ["qemu-system-x86_64"])
    assert found == "QEMU was killed by SIGABRT: error: no MSR"


async def test_silent_machine_is_retried_after_hour(trial: BootTrial) -> None:
    reason = "init did not start within 0.3 s"
    assert await fault(replace(trial, limit=0.3), HANGS) == (reason, 1)
    assert await fault(replace(trial, wall=lambda: 4599.0), BOOTS.replace("60", "61")) == ("", 2)
    assert await fault(replace(trial, wall=lambda: 4599.0), HANGS) == (reason, 2)
    assert await fault(replace(trial, limit=0.3, wall=lambda: 4600.0), HANGS) == (reason, 3)


async def test_another_initrd_or_another_qemu_is_tried_anew(trial: BootTrial, named_qemu: Path) -> None:
    assert await fault(trial, BOOTS) == ("", 1)
    trial.image.initrd.write_bytes(b"another")
    assert await fault(trial, BOOTS) == ("", 2)
    _name(named_qemu, "8.0.0")
    assert await fault(trial, BOOTS) == ("", 3)


async def test_unreadable_verdict_repeats_trial(trial: BootTrial) -> None:
    assert await fault(trial, BOOTS) == ("", 1)
    (kept,) = trial.folder.iterdir()
    kept.write_text("{")
    assert await fault(trial, BOOTS) == ("", 2)
    assert await fault(replace(trial, folder=Path("/proc/accelerators")), BOOTS) == ("", 3)


async def test_an_image_that_cannot_be_read_is_said(trial: BootTrial) -> None:
    trial.image.kernel.unlink()
    with pytest.raises(GuestError, match=r"cannot read the guest image: .*vmlinuz"):
        await fault(trial, BOOTS)


async def chosen(device: Path, found: str) -> tuple[str, str, list[str]]:
    """The accelerator, its reason, and what was tried."""
    tried: list[str] = []

    async def boot_fault(accelerator: Accelerator) -> str:
        tried.append(accelerator.name)
        return found

    accelerator = await choose_accelerator(boot_fault, device)
    return accelerator.name, accelerator.reason, tried


async def test_kvm_is_used_if_a_guest_boots(tmp_path: Path) -> None:
    device = tmp_path / "kvm"
    device.touch()
    assert await chosen(device, "") == ("kvm", f"KVM: a guest boots on {device}", ["kvm"])
    why = f"KVM: {device} opens but does not boot a guest (internal-error: it stopped); emulating"
    assert await chosen(device, "internal-error: it stopped") == ("tcg", why, ["kvm"])


async def test_a_missing_device_is_known_without_a_trial(tmp_path: Path) -> None:
    assert await chosen(tmp_path / "kvm", "") == ("tcg", f"software emulation: there is no {tmp_path}/kvm", [])


async def test_a_missing_qemu_is_said_with_the_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(GuestError, match="qemu-system-x86_64 is not installed; on Debian: sudo apt-get install"):
        await chosen(tmp_path, "")
