"""A real standby of a real primary: it streams, moves while it streams, and loses no transaction when it leaves."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from deploy.neonvm.addressing import DAEMON_PORT
from deploy.neonvm.guests.qemu_guests import QemuGuests
from deploy.neonvm.network.chooser import NetworkKind
from deploy.neonvm.qemu.daemon import ask
from protocol.guest.database import DatabaseState
from protocol.messages import ObjectName
from protocol.names import KERNEL_PRIMARY
from protocol.runtime.clock import SystemClock
from protocol.units import MilliCpu, Seconds
from scheduler_plugin.groups.core.replicas.group_plan import drain
from scheduler_plugin.groups.core.replicas.members import GroupSpec, Member, Role
from tests.vm.guests import Booted, booted, until, until_running, with_password
from tests.vm.journeys import Journey
from vm_image.build import ensure_image

pytestmark = pytest.mark.vm
CATCH_UP_SECONDS = 60


@asynccontextmanager
async def standby_of(primary: Booted, state_dir: Path) -> AsyncIterator[Journey]:
    """A booted standby of ``primary`` that may travel between two nodes."""
    await primary.network.add_node("node-2")
    vm, pod = ObjectName("default", "db-replica-0"), ObjectName("default", "db-replica-0-pod")
    spec = replace(
        primary.spec,
        vm=vm,
        pod=pod,
        cpu_max=MilliCpu(2000),
        address=await primary.network.vm_address(vm),
        network=await primary.network.add_pod("node-1", pod),
        state_dir=state_dir,
        kernel_arguments=f"{KERNEL_PRIMARY}={primary.spec.address}",
    )
    image = await asyncio.to_thread(ensure_image, lambda _: None)
    guests = await QemuGuests.prepare(image, primary.network, SystemClock())
    guest = await with_password(guests.create(spec))
    journey = Journey(Booted(guest, spec, primary.network), guests, guest, spec)
    try:
        await journey.guest.start()
        await until_running(journey.guest)
        yield journey
    finally:
        await journey.guest.stop()


async def database(guest: Booted) -> DatabaseState:
    """The database status from the daemon in the guest."""

    views: list[DatabaseState] = []

    async def dial() -> socket.socket:
        return await guest.network.connect(guest.spec.pod, guest.place.guest_host, DAEMON_PORT)

    async def is_told() -> bool:
        answer = await ask(dial, "GET", "/database", "", 10.0)
        if answer.status == 200:  # 503 while the database cannot say
            views.append(msgspec.json.decode(answer.text, type=DatabaseState))
        return bool(views)

    await until(is_told, CATCH_UP_SECONDS, guest.guest)
    return views[0]


async def rows(guest: Booted) -> str:
    """The sum of all balances, which every transaction of pgbench changes."""
    return (
        await guest.psql("SELECT sum(abalance) || ' ' || sum(delta) FROM pgbench_accounts, pgbench_history")
    ).strip()


async def catches_up(primary: Booted, standby: Booted) -> None:
    """Returns once the standby has what the primary has."""

    async def holds() -> bool:
        return await rows(primary) == await rows(standby)

    await until(holds, CATCH_UP_SECONDS, standby.guest)


async def test_standby_serves_reads_and_leaves_cleanly(tmp_path: Path) -> None:
    async with booted(NetworkKind.AUTO, tmp_path / "primary") as primary:
        await primary.pgbench("--initialize", "--quiet", "--scale=1")
        async with standby_of(primary, tmp_path / "standby") as journey:
            await primary.pgbench("--client=1", "--transactions=20")
            await catches_up(primary, journey.here())
            await sessions(journey.here(), 0)  # a session of psql ends a moment after psql
            said = await database(journey.here())
            assert (said.is_standby, said.streaming, said.sessions) == (True, True, 0)
            assert (await database(primary)).is_standby is False
            await survives_a_lost_session(journey.here())

            write = asyncio.create_task(primary.pgbench("--client=1", "--time=6", "--rate=10"))
            read = asyncio.create_task(journey.here().pgbench("--client=2", "--time=6", "--rate=20", "--select-only"))
            await asyncio.sleep(1)
            await journey.hop()
            assert "number of failed transactions: 0 (0.000%)" in await write
            assert "number of failed transactions: 0 (0.000%)" in await read
            await catches_up(primary, journey.here())

            clients = asyncio.create_task(
                journey.here().pgbench("--client=2", "--time=15", "--rate=20", "--select-only")
            )
            await sessions(journey.here(), 2)
            waited = await drained(journey.here())
            await journey.guest.stop()
            assert "number of failed transactions: 0 (0.000%)" in await clients
            assert waited[-1] == "it has no sessions left"
            assert any(reason.startswith("2 sessions") for reason in waited)


async def survives_a_lost_session(guest: Booted) -> None:
    """Ends the session that answers questions; returns once another one does."""
    ended = await guest.psql(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
        " WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"
    )
    assert ended.strip() == "t"

    async def streams() -> bool:
        return (await database(guest)).streaming

    await until(streams, CATCH_UP_SECONDS, guest.guest)


async def sessions(guest: Booted, count: int) -> None:
    """Wait until this many clients are connected."""

    async def holds() -> bool:
        return (await database(guest)).sessions == count

    await until(holds, 20, guest.guest)


async def drained(guest: Booted) -> list[str]:
    """Wait as the group's controller does until the standby may be removed; return what it waited for."""
    spec, began, reasons = GroupSpec("db", 0, grace=Seconds(60.0)), time.monotonic(), []
    while True:
        state = await database(guest)
        member = Member("db-replica-0", "u", Role.REPLICA, 0, "", available=True, database=state)
        found = drain(member, Seconds(time.monotonic() - began), spec)
        reasons.append(found.reason)
        if found.done:
            return reasons
        await asyncio.sleep(1.0)
