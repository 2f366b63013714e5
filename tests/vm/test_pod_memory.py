"""A pod's memory in control groups of version 2, provided by a guest's kernel on any machine."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import sysconfig
from importlib.util import find_spec
from pathlib import Path

import pytest

from deploy.neonvm.qemu.accelerator import QEMU, emulation
from deploy.owned_process import owned
from tests.slowness import Slowness
from vm_image.archives import Entry, initrd
from vm_image.build import GuestImage, ensure_image

pytestmark = pytest.mark.vm

ROOT = Path(__file__).parents[2]
BOOT_SECONDS = 1500
"""For the whole story; two to three minutes on a quiet machine."""

MIB = 1024**2

INIT = """#!/bin/sh
mount -t devtmpfs dev /dev
mount -t proc proc /proc
while read -r module; do
    insmod "/modules/$module.ko"
done </modules/order
mount -t ext4 -o rw,noatime /dev/vda /root
mount -t ext4 -o ro /dev/vdb /root/mnt
mount -t proc proc /root/proc
mount -t sysfs sys /root/sys
mount -t devtmpfs dev /root/dev
mount -t tmpfs run /root/run
mount -t cgroup2 cgroup /root/sys/fs/cgroup
/bin/busybox mkdir -m 1777 /root/run/reclaimer
/bin/busybox chroot /root /mnt/python /mnt/pod_memory_guest.py </dev/null >/root/dev/ttyS0 2>&1
echo ENDED >/root/dev/ttyS0
poweroff -f
"""

PYTHON = """#!/bin/sh
export PATH=/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C.UTF-8 PYTHON=/mnt/python
export PYTHONHOME=/mnt PYTHONPATH=/mnt/packages PYTHONDONTWRITEBYTECODE=1
exec /mnt/lib/{loader} --library-path /mnt/lib /mnt/bin/python "$@"
"""


def libraries(program: Path) -> list[Path]:
    """The shared libraries of a program, its loader among them."""
    shown = subprocess.run(["ldd", program], capture_output=True, text=True, check=True).stdout
    words = (line.replace("=>", " ").split() for line in shown.splitlines())
    return [Path(word) for line in words for word in line if word.startswith("/")]


def make_disk(folder: Path, disk: Path) -> None:
    """A disk with this Python, what the agent imports, and the program of the test."""
    program = Path(sys.executable).resolve()
    without_tests = shutil.ignore_patterns("__pycache__", "test", "tests", "idlelib", "site-packages", "dist-packages")
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    shutil.copytree(sysconfig.get_path("stdlib"), folder / "lib" / version, ignore=without_tests)
    for library in libraries(program):
        shutil.copy(library, folder / "lib")
    (folder / "bin").mkdir()
    shutil.copy(program, folder / "bin/python")
    msgspec = find_spec("msgspec")
    assert msgspec is not None
    assert msgspec.origin is not None
    for package in (ROOT / "agent", ROOT / "protocol", Path(msgspec.origin).parent):
        shutil.copytree(package, folder / "packages" / package.name, ignore=without_tests)
    shutil.copy(Path(__file__).with_name("pod_memory_guest.py"), folder)
    loader = next(library.name for library in libraries(program) if library.name.startswith("ld-"))
    (folder / "python").write_text(PYTHON.format(loader=loader))
    (folder / "python").chmod(0o755)
    subprocess.run(["mke2fs", "-q", "-t", "ext4", "-d", folder, disk, "160M"], check=True)


def run(image: GuestImage, folder: Path) -> str:
    """All that the guest says on its console."""
    make_disk(folder / "disk", folder / "disk.img")
    first = folder / "initrd"
    # Of two archives in a row, the kernel takes a file from the last that has it.
    first.write_bytes(image.initrd.read_bytes() + initrd([Entry("init", INIT.encode(), 0o755)], ()))
    overlay = folder / "root.qcow2"
    subprocess.run(["qemu-img", "create", "-q", "-f", "qcow2", "-F", "raw", "-b", image.disk, overlay], check=True)
    drives = ((overlay, "qcow2"), (folder / "disk.img", "raw"))
    command = [
        *(QEMU, "-nodefaults", "-no-user-config", "-no-reboot", "-display", "none", "-machine", "q35"),
        *(*emulation("").arguments, "-smp", "2", "-m", "900M"),
        *("-kernel", image.kernel, "-initrd", first, "-serial", "stdio"),
        *("-append", "console=ttyS0 quiet loglevel=3 mitigations=off psi=1 panic=-1"),
    ]
    for number, (file, form) in enumerate(drives):
        command += ["-drive", f"if=none,id=d{number},format={form},cache=unsafe,file={file}"]
        command += ["-device", f"virtio-blk-pci,drive=d{number}"]
    done = subprocess.run(
        owned([str(word) for word in command]),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=BOOT_SECONDS,
        check=False,
    )
    return done.stdout + done.stderr


def test_pod_memory(tmp_path: Path) -> None:
    """Metered, held without harm, released at each kind of end; and nothing is ever killed.

    The reclaimer has UID 0 and no capability, the agent is UID 65532. Emulation is slow, so only bounds are checked.
    """
    image = ensure_image(lambda line: print(line, file=sys.stderr))
    with Slowness() as slow:
        console = run(image, tmp_path)
    print(console)
    saw = dict(json.loads(line.removeprefix("SAW ")) for line in console.splitlines() if line.startswith("SAW "))
    sample = saw["sample"]
    assert (sample["mem_total"], sample["oom_kills"]) == (300 * MIB, 0.0)
    assert sample["mem_available"] > 250 * MIB > 20 * MIB > sample["mem_free"]
    assert None not in [sample[name] for name in ("cpu_stall", "mem_stall", "io_stall", "refaulted", "read", "written")]
    assert saw["full"] > 280
    assert (saw["held_at"], saw["used_while_held"] <= 153) == ("152 MiB", True)
    assert saw["answer"] == [True, "the pod stayed below that for 20 s"]
    assert saw["released_after"] < slow.stretched(5)
    assert (saw["answer_of_a_reader"][0], saw["reader_released_after"] < slow.stretched(2)) == (False, True)
    assert (saw["answer_of_a_program"][0], saw["program_lives"]) == (False, True)
    assert "headroom included" in saw["answer_of_a_program"][1]
    assert saw["answer_of_a_stranger"][0] is False
    assert (saw["left_by_a_crash"], saw["after_the_next_start"], saw["kills"]) == ("152 MiB", "max", 0)
    assert saw["kills_after_one"] == 1, "counted by the pod's group"
