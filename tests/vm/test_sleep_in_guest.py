"""A real guest is frozen for a sleep and thawed again, with a session open (B.18)."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Final

import pytest

from deploy.neonvm.addressing import DAEMON_PORT, THAW_PORT
from deploy.neonvm.guests.qemu_guest import QemuGuest
from deploy.neonvm.network.chooser import NetworkKind
from deploy.neonvm.qemu.daemon import DaemonResponse
from scripts.database_client import DatabaseSession
from tests.vm.guests import PASSWORD, Booted, booted, until

pytestmark = pytest.mark.vm
PATIENCE: Final = 240
"""Seconds; on a busy machine the guest often refuses, because its database does not answer itself in time."""
LATE: Final = 60
"""Seconds that an order and a question may take there."""
NANO: Final = 10**9
QUIET: Final = "autoscale_database_quiet_seconds"
AWAKE: Final = "autoscale_database_awake"


async def order(vm: Booted, path: str, body: str = "", port: int = DAEMON_PORT) -> DaemonResponse:
    """The guest's response to an order."""
    assert isinstance(vm.guest, QemuGuest)
    began = time.monotonic()
    response = await vm.guest.daemon.ask("PUT", path, body, 15, port)
    print(f"{path}: {response} after {1000 * (time.monotonic() - began):.0f} ms")
    return response


async def froze(vm: Booted) -> bool:
    """Return True if the guest is frozen: it may have work to do for a moment."""
    return (await order(vm, "/freeze")).status == 200


async def wake(vm: Booted, ahead: int = 0) -> None:
    """Thaw the guest, with a time that is this many seconds ahead of ours."""
    now = time.time_ns()
    response = await order(vm, "/thaw", f"{now // NANO + ahead}.{now % NANO:09d}", THAW_PORT)
    assert response == DaemonResponse(200, "the database runs")


async def clock_ahead(vm: Booted) -> float:
    """Seconds by which the guest's clock is ahead of ours."""
    return float(await vm.psql("SELECT extract(epoch FROM clock_timestamp())")) - time.time()


async def test_guest_freezes_and_continues(tmp_path: Path) -> None:
    """The session loses nothing, the clock is right, and a guest that is never thawed resumes on its own."""
    async with booted(NetworkKind.AUTO, tmp_path) as vm:
        port = await vm.network.expose(vm.spec.address, 5432)
        async with asyncio.timeout(PATIENCE):
            session = await DatabaseSession.open("127.0.0.1", port, PASSWORD)
            await session.query("CREATE TEMPORARY TABLE kept AS SELECT 1 AS n")

        await until(lambda: froze(vm), PATIENCE, vm.guest)
        page = await vm.scrape("textfile")
        assert page[QUIET] < PATIENCE
        assert not any(name.startswith(AWAKE) for name in page)
        assert (await order(vm, "/freeze")).text == '{"sessions": 1}'
        session.begin("SELECT n FROM kept")
        answer = asyncio.ensure_future(session.finished())
        await asyncio.wait((answer,), timeout=1.0)
        assert not answer.done()
        assert await order(vm, "/freeze") == DaemonResponse(409, "a client has sent something")
        await asyncio.wait_for(answer, PATIENCE)

        await until(lambda: froze(vm), PATIENCE, vm.guest)
        await wake(vm, ahead=3600)
        assert abs(await clock_ahead(vm) - 3600) < LATE
        assert (await vm.scrape("textfile"))[QUIET] < PATIENCE, "hours of sleep are not hours of quiet"
        await wake(vm)
        assert abs(await clock_ahead(vm)) < LATE

        await until(lambda: froze(vm), PATIENCE, vm.guest)
        session.begin("SELECT n FROM kept")
        async with asyncio.timeout(PATIENCE):
            await session.finished()
        session.close()


async def test_spare_empties_page_cache(tmp_path: Path) -> None:
    async with booted(NetworkKind.AUTO, tmp_path) as vm:
        await vm.pgbench("--initialize", "--quiet", "--scale=5")
        await vm.psql("CHECKPOINT")
        before = (await vm.scrape("meminfo"))["node_memory_Cached_bytes"]
        assert (await order(vm, "/spare")).status == 200
        assert (await vm.scrape("meminfo"))["node_memory_Cached_bytes"] < before / 2
        assert await vm.psql("SELECT count(*) FROM pgbench_accounts") == "500000\n"
