"""A guest never outlives the process that owns it, and leaves nothing in the way of the next one."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from deploy.neonvm.network import netns
from deploy.neonvm.network.chooser import NetworkKind, choose_network
from tests.vm.guests import BOOT_SECONDS, cluster_of, machines, until

pytestmark = pytest.mark.vm
END_SECONDS = 60

# A shell starts its background jobs with SIGINT ignored, and their children inherit that.
_OWNER = """
import asyncio, signal, sys
from pathlib import Path
from deploy.neonvm.network.chooser import NetworkKind
from tests.vm.guests import booted

async def main():
    async with booted(NetworkKind.AUTO, Path(sys.argv[1])):
        print("up", flush=True)
        await asyncio.Event().wait()

signal.signal(signal.SIGINT, signal.default_int_handler)
asyncio.run(main())
"""


@asynccontextmanager
async def owning(state_dir: Path) -> AsyncIterator[asyncio.subprocess.Process]:
    """A process whose guest runs; it does not outlive the test."""
    owner = await asyncio.create_subprocess_exec(
        sys.executable, "-c", _OWNER, str(state_dir), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL
    )
    try:
        assert owner.stdout is not None
        async with asyncio.timeout(BOOT_SECONDS):
            assert await owner.stdout.readline() == b"up\n", "the owner ended without a guest"
        yield owner
    finally:
        if owner.returncode is None:
            owner.kill()
            await owner.wait()


async def test_killed_owner_ends_guest_and_frees_network(tmp_path: Path) -> None:
    async with owning(tmp_path) as owner:
        assert machines(tmp_path) != []
        owner.kill()
        await owner.wait()

    async def gone() -> bool:
        return machines(tmp_path) == []

    await until(gone, END_SECONDS)
    network = await choose_network(NetworkKind.AUTO, real_guests=True, cluster=cluster_of(tmp_path))
    await network.down()
    assert list(netns.RUN.glob(f"autoscale.{cluster_of(tmp_path)}.*")) == []


async def test_interrupted_owner_cleans_up(tmp_path: Path) -> None:
    async with owning(tmp_path) as owner:
        owner.send_signal(signal.SIGINT)
        async with asyncio.timeout(END_SECONDS):
            await owner.wait()
    assert machines(tmp_path) == []
    assert list(netns.RUN.glob(f"autoscale.{cluster_of(tmp_path)}.*")) == []
