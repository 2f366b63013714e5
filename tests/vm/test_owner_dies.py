"""A guest never outlives the process that owns it, and leaves nothing in the way of the next one."""

from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path

import pytest

from deploy.neonvm.network import netns
from deploy.neonvm.network.chooser import NetworkKind, choose_network
from tests.vm.guests import BOOT_SECONDS, machines, until

pytestmark = pytest.mark.vm

_OWNER = """
import asyncio, sys
from pathlib import Path
from deploy.neonvm.network.chooser import NetworkKind
from tests.vm.guests import booted

async def main():
    async with booted(NetworkKind.AUTO, Path(sys.argv[1])):
        print("up", flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""


async def comes_up(owner: asyncio.subprocess.Process) -> None:
    """Returns once the owner's guest runs; an owner that ends says nothing."""
    assert owner.stdout is not None
    async with asyncio.timeout(BOOT_SECONDS):
        assert await owner.stdout.readline() == b"up\n"


async def test_a_killed_owner_takes_its_guest_along_and_its_network_can_be_removed(tmp_path: Path) -> None:
    owner = await asyncio.create_subprocess_exec(
        sys.executable, "-c", _OWNER, str(tmp_path), stdout=asyncio.subprocess.PIPE
    )
    await comes_up(owner)
    assert machines(tmp_path) != []
    owner.kill()
    await owner.wait()

    async def gone() -> bool:
        return machines(tmp_path) == []

    await until(gone, 10)
    network = await choose_network(NetworkKind.AUTO, real_guests=True, cluster=f"vm-test-{owner.pid}")
    await network.down()
    assert list(netns.RUN.glob(f"autoscale.vm-test-{owner.pid}.*")) == []


async def test_an_interrupted_owner_ends_its_guest_and_network_by_itself(tmp_path: Path) -> None:
    owner = await asyncio.create_subprocess_exec(
        sys.executable, "-c", _OWNER, str(tmp_path), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL
    )
    await comes_up(owner)
    owner.send_signal(signal.SIGINT)
    async with asyncio.timeout(10):
        await owner.wait()
    assert machines(tmp_path) == []
    assert list(netns.RUN.glob(f"autoscale.vm-test-{owner.pid}.*")) == []
