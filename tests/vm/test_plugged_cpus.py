"""CPUs plugged into a real QEMU whose guest does not run: a running one would crash under emulation (B.11)."""

from __future__ import annotations

import asyncio
import socket
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from deploy.neonvm.access.connections import RunnerEndpoint
from deploy.neonvm.ports import GuestError
from deploy.neonvm.qemu.accelerator import QEMU
from deploy.neonvm.remote.remote_guest import RemoteMachine, count_plugged, plug
from deploy.owned_process import owned
from protocol.runtime.clock import SystemClock
from tests.vm.guests import BOOT_SECONDS, until

pytestmark = pytest.mark.vm

WHO = "default/db-x"
LISTENING = "00010000"
"""The flags of such a socket in /proc/net/unix."""


@pytest.fixture
def monitor(tmp_path: Path) -> Iterator[Path]:
    """The monitor of a machine as NeonVM's runner makes it, with one CPU of four, which has not begun to run."""
    path = tmp_path / "qmp"
    command = [
        *(QEMU, "-machine", "q35", "-nographic", "-nodefaults", "-S", "-accel", "tcg", "-cpu", "max", "-m", "64M"),
        *("-smp", "cpus=1,maxcpus=4,sockets=1,cores=4,threads=1", "-qmp", f"unix:{path},server=on,wait=off"),
    ]
    with subprocess.Popen(owned(command), stdin=subprocess.DEVNULL) as process:
        try:
            yield path
        finally:
            process.kill()


def listens(path: Path) -> bool:
    """Return True if a socket listens there: its file exists a moment before."""
    found = [line.split() for line in Path("/proc/net/unix").read_text().splitlines() if line.endswith(str(path))]
    return any(flags == LISTENING for _, _, _, flags, *_ in found)


@pytest.fixture
async def machine(monitor: Path) -> AsyncIterator[RemoteMachine]:
    """The machine, once its monitor listens."""

    async def connect(_: RunnerEndpoint) -> socket.socket:
        made = socket.socket(socket.AF_UNIX)
        made.connect(str(monitor))
        made.setblocking(False)
        return made

    async def is_up() -> bool:
        return await asyncio.to_thread(listens, monitor)

    await until(is_up, BOOT_SECONDS)
    async with RemoteMachine(RunnerEndpoint(WHO, "", "", 0, 0), connect, lambda: True) as made:
        yield made


async def test_plugged_cpus_match_the_order(
    machine: RemoteMachine,
) -> None:
    assert await count_plugged(machine, WHO) == 1
    await plug(machine, WHO, 3, SystemClock())
    assert await count_plugged(machine, WHO) == 3
    with pytest.raises(GuestError, match="4 CPUs are plugged in, 5 were requested"):
        await plug(machine, WHO, 5, SystemClock())
    with pytest.raises(GuestError, match="refused device_del"):  # its firmware has not run
        await plug(machine, WHO, 2, SystemClock())
    assert await count_plugged(machine, WHO) == 4
