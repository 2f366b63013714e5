"""Our guest image as NeonVM v0.49.1's own runner starts it: disks, DHCP, plugged CPUs, daemon, power button (B.11).

Two things of that runner are not here: its kernel (ours has no driver for iso9660 and for the button's key, so the disk
with settings is ext4 and a pipe is the button) and ACPI's hot-plug, which crashes an emulated machine: the kernel is
told to say again that a CPU was added.
"""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from deploy.neonvm.network.sockets import free_ports
from deploy.neonvm.qemu.accelerator import QEMU, emulation
from deploy.owned_process import owned
from tests.vm.guests import BOOT_SECONDS, PASSWORD, psql, until
from vm_image.build import GuestImage, ensure_image

pytestmark = pytest.mark.vm

RUNTIME: Final = {
    "sysctl.conf": "kernel.core_pattern=core\nvm.swappiness=7",
    "env.sh": "export SHOP='of our own'\n",
    "args.sh": "-c work_mem=7MB -c 'cluster_name=the shop'",
    "mounts.sh": "set -euo pipefail\n"
    "/neonvm/bin/mkdir -p /var/scratch\n"
    "/neonvm/bin/mount -t tmpfs -o size=1048576 scratch /var/scratch\n"
    "/neonvm/bin/chmod 0777 /var/scratch\n"
    "/neonvm/bin/blkid /dev/vdb > /var/scratch/disk\n"
    "/neonvm/bin/mkdir -p /etc/autoscale/secret\n"  # as a disk of the VM from a Secret is mounted
    f"echo '{PASSWORD}' > /etc/autoscale/secret/password\n"
    # What follows lets this test, as the database's user, do what the machine would do.
    "/neonvm/bin/mkdir -p /dev/input\n"
    "mkfifo -m 666 /dev/input/event0\n"
    "/neonvm/bin/chmod 666 /sys/devices/system/cpu/cpu1/uevent\n",
}
"""The files that the runner writes for ``spec.guest`` of a VM, and for its disks."""

LINE: Final = (
    "panic=-1 init=/neonvm/bin/init loglevel=6 root=/dev/vda rw memhp_default_state=online "
    "memory_hotplug.online_policy=auto-movable memory_hotplug.auto_movable_ratio=301 hostname=vm-db console=ttyS1"
)
"""The kernel's command line of a VM with QmpScaling."""

BUTTON: Final = r"\000\000\000\000\000\000\000\000\000\000\000\000\000\000\000\000\001\000t\000\001\000\000\000"
"""The key KEY_POWER pressed, as the kernel's evdev says it."""


@dataclass(frozen=True)
class Machine:
    """QEMU's process; the guest's daemon and its database are at ports of loopback."""

    process: subprocess.Popen[bytes]
    daemon: int
    database: int

    async def daemon_says(self, method: str, body: str = "") -> tuple[int, bytes]:
        """Status and body of the daemon's answer about the CPU."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.daemon)
        writer.write(f"{method} /cpu HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode())
        answer = await reader.read()
        writer.close()
        head, _, said = answer.partition(b"\r\n\r\n")
        return int(head.split()[1]), said

    async def sql(self, query: str) -> str:
        """Query the database."""
        return await psql(self.database, query)


async def has_said(console: Path, words: str) -> bool:
    """True if the guest has said so. It is not asked itself: that would be most of an emulated guest's work."""
    return words in await asyncio.to_thread(console.read_text, errors="replace")


async def until_said(ask: Callable[[], Awaitable[object]], wanted: object) -> None:
    """Returns once ``ask`` answers ``wanted``."""

    async def is_said() -> bool:
        return await ask() == wanted

    await until(is_said, BOOT_SECONDS)


@contextmanager
def machine(image: GuestImage, folder: Path) -> Iterator[Machine]:
    """A machine as the runner makes it: two CPUs plugged in, the image's disk, and the one with settings."""
    settings = folder / "settings"
    settings.mkdir()
    for name, text in RUNTIME.items():
        (settings / name).write_text(text)
    runtime, disk = folder / "runtime.raw", folder / "rootdisk.qcow2"
    subprocess.run(["mke2fs", "-q", "-t", "ext4", "-L", "vmruntime", "-d", settings, runtime, "8M"], check=True)
    overlay = ["qemu-img", "create", "-q", "-f", "qcow2", "-F", "raw", "-b", str(image.disk), str(disk)]
    subprocess.run(overlay, check=True)
    daemon, database = free_ports(2)
    forwards = ",".join(f"hostfwd=tcp:127.0.0.1:{own}-:{port}" for own, port in ((daemon, 25183), (database, 5432)))
    command = [
        *(QEMU, "-machine", "q35", "-nographic", "-no-reboot", "-nodefaults", *emulation("a test").arguments),
        *("-serial", "null", "-serial", f"file:{folder / 'console'}"),
        *("-drive", f"id=rootdisk,file={disk},if=virtio,media=disk,index=0"),
        *("-drive", f"id=runtime,file={runtime},format=raw,if=virtio,media=cdrom,readonly=on"),
        *("-smp", "cpus=2,maxcpus=2,sockets=1,cores=2,threads=1", "-m", "512M"),
        *("-netdev", f"user,id=default,restrict=on,{forwards}", "-device", "virtio-net-pci,netdev=default,romfile="),
        *("-kernel", str(image.kernel), "-initrd", str(image.initrd), "-append", f"{LINE} {emulation('').kernel}"),
    ]
    with subprocess.Popen(owned(command), stdin=subprocess.DEVNULL) as process:
        try:
            yield Machine(process, daemon, database)
        finally:
            process.kill()


async def test_image_works_with_neonvms_runner(tmp_path: Path) -> None:
    image = await asyncio.to_thread(ensure_image, lambda line: print(line, flush=True))
    console = tmp_path / "console"
    console.touch()
    with machine(image, tmp_path) as vm:
        await until_said(lambda: has_said(console, "the database has its password"), wanted=True)
        asked = "SELECT current_setting('work_mem'), current_setting('cluster_name')"
        assert await vm.sql(asked) == "7MB|the shop\n"
        asked = "CREATE TEMP TABLE said (it text); COPY said FROM PROGRAM 'echo $SHOP'; SELECT * FROM said"
        assert await vm.sql(asked) == "of our own\n"
        assert await vm.sql("SELECT pg_read_file('/proc/sys/vm/swappiness')") == "7\n\n"
        assert 'LABEL="vmruntime"' in await vm.sql("SELECT pg_read_file('/var/scratch/disk')")

        # Digits alone: NeonVM's runner reads them as a number, and is never ready otherwise.
        assert await vm.daemon_says("GET") == (200, b"2000")
        assert await vm.daemon_says("PUT", "1000") == (200, b"1000")
        await vm.sql("COPY (SELECT 'add') TO '/sys/devices/system/cpu/cpu1/uevent'")
        await until_said(lambda: vm.daemon_says("GET"), (200, b"2000"))

        await vm.sql(f"COPY (SELECT '') TO PROGRAM $$printf '{BUTTON}' >/dev/input/event0$$")
        assert await asyncio.to_thread(vm.process.wait, BOOT_SECONDS) == 0
        assert await has_said(console, "database system is shut down")
