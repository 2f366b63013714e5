"""A real guest sleeps, and its clients do not notice (B.18).

One guest serves all cases of a network: each leaves it awake, and none needs what another has left.
"""

from __future__ import annotations

import asyncio
import socket
import stat
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import pytest
import pytest_asyncio

from deploy.neonvm.guests.qemu_guest import QemuGuest
from deploy.neonvm.network.chooser import NetworkKind
from deploy.neonvm.ports import GuestPhase, SleepRefusedError, TransferError, Woken
from deploy.neonvm.sleep.image import NAME
from scripts.database_client import DatabaseError, DatabaseSession
from tests.vm.guests import PASSWORD, Booted, booted, machines, until, until_running
from tests.vm.journeys import LIMITS, travelling

pytestmark = [pytest.mark.vm, pytest.mark.asyncio(loop_scope="module")]

PATIENCE: Final = 60
FALL: Final = 240
"""Seconds; on a busy machine the guest often refuses, because its database does not answer itself in time."""
RESET: Final = 600
"""Seconds; a client repeats what a guest that boots does not hear, after longer and longer pauses."""
MARK: Final = "a row that nobody else may read"
KEEPALIVE: Final = 2
PROBES: Final = 4
SLEEP: Final = 13.0
"""Seconds; a connection whose keepalives were not answered would be dead after ten."""
MOMENTS: Final = 8


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def only_guest(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Booted]:
    async with booted(NetworkKind.AUTO, tmp_path_factory.mktemp("sleep")) as guest:
        yield guest


@pytest_asyncio.fixture(loop_scope="module")
async def vm(only_guest: Booted) -> AsyncIterator[Booted]:
    """The guest of these cases; one that has failed leaves it awake, too."""
    yield only_guest
    if sleeper(only_guest).asleep is not None:
        await sleeper(only_guest).wake()
    await until_running(only_guest.guest)


def sleeper(vm: Booted) -> QemuGuest:
    assert isinstance(vm.guest, QemuGuest)
    return vm.guest


def image(vm: Booted) -> Path:
    return vm.spec.state_dir / NAME


async def session_of(vm: Booted) -> DatabaseSession:
    """A session whose client asks all the time whether the guest is still there."""
    connection = await vm.network.connect(None, vm.spec.address, 5432)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, KEEPALIVE)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, KEEPALIVE)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, PROBES)
    async with asyncio.timeout(PATIENCE):
        return await DatabaseSession.over(connection, PASSWORD)


@asynccontextmanager
async def opened(vm: Booted) -> AsyncIterator[DatabaseSession]:
    """Open a session that is closed before the next case in any case."""
    session = await session_of(vm)
    try:
        yield session
    finally:
        session.close()


async def value(session: DatabaseSession, query: str) -> str:
    return (await session.query(query))[0][0]


async def fall_asleep(vm: Booted) -> float:
    """Puts the guest to sleep, which may have something to do for a moment. Returns the seconds that it took."""
    attempts: list[float] = []

    async def falls() -> bool:
        attempts.append(time.monotonic())
        try:
            print(await sleeper(vm).fall_asleep())
        except SleepRefusedError as error:
            print(f"refused: {error}")
            return False
        return True

    await until(falls, FALL, vm.guest)
    return time.monotonic() - attempts[-1]


async def answer_to(session: DatabaseSession, query: str) -> list[list[str]]:
    """The rows of a query, of which the time is printed."""
    began = time.monotonic()
    async with asyncio.timeout(PATIENCE):
        rows = await session.query(query)
    print(f"{query}: answered after {time.monotonic() - began:.2f} s")
    return rows


async def wake(vm: Booted) -> Woken:
    """Wakes the guest as soon as something must reach it."""
    async with asyncio.timeout(PATIENCE):
        caller = await sleeper(vm).woken()
        woken = await sleeper(vm).wake()
    print(f"{caller}: {woken}")
    return woken


async def clock_error(session: DatabaseSession) -> float:
    """Seconds by which the guest's clock is certainly off."""
    before = time.time()
    now = float(await value(session, "SELECT extract(epoch FROM clock_timestamp())"))
    return max(before - now, now - time.time(), 0.0)


async def sleeps_and_goes_on(vm: Booted) -> None:
    """A session, asleep for longer than its client would wait for an answer to its keepalives."""
    async with opened(vm) as session:
        await session.query(f"CREATE TEMPORARY TABLE kept AS SELECT '{MARK}' AS text")
        await session.query("PREPARE kept_text AS SELECT text FROM kept")
        await session.query("LISTEN news")
        await fall_asleep(vm)
        assert machines(vm.spec.state_dir) == []
        assert (await vm.guest.state()).phase is GuestPhase.ASLEEP
        assert stat.S_IMODE(image(vm).stat().st_mode) == 0o600
        assert MARK.encode() not in image(vm).read_bytes()

        await asyncio.sleep(SLEEP)
        answer = asyncio.ensure_future(answer_to(session, "EXECUTE kept_text"))
        assert (await wake(vm)).fault == ""
        assert await answer == [[MARK]]
        assert await clock_error(session) < 0.5
        assert await value(session, "SELECT pg_listening_channels()") == "news"
        assert not image(vm).exists()
        assert len(machines(vm.spec.state_dir)) == 1


async def test_session_outlives_sleep(vm: Booted) -> None:
    """The temporary table, prepared statement and LISTEN survive, the clock is right, and nothing is left behind."""
    await sleeps_and_goes_on(vm)


async def test_session_outlives_sleep_behind_hub(tmp_path: Path) -> None:
    """Without root, too."""
    async with booted(NetworkKind.HUB, tmp_path) as vm:
        await sleeps_and_goes_on(vm)


async def test_guest_that_has_moved_sleeps(tmp_path: Path) -> None:
    """Its QEMU is the one that received it, and is set up for a move."""
    async with travelling(NetworkKind.AUTO, tmp_path) as journey:
        await journey.hop()
        vm = journey.here()
        async with opened(vm) as session:
            await fall_asleep(vm)
            answer = asyncio.ensure_future(answer_to(session, "SELECT 7"))
            assert (await wake(vm)).fault == ""
            assert await answer == [["7"]]


async def test_new_connection_wakes(vm: Booted) -> None:
    await fall_asleep(vm)
    opening = asyncio.ensure_future(session_of(vm))
    assert (await wake(vm)).fault == ""
    session = await opening
    assert await value(session, "SELECT 1") == "1"
    session.close()


async def test_queries_while_it_falls_asleep(vm: Booted) -> None:
    """A query at any moment is answered: the guest refuses to sleep, or wakes."""
    async with opened(vm) as session:
        usual = await fall_asleep(vm)
        await sleeper(vm).wake()
        ends: list[str] = []
        # On a busy machine a fall may take longer than the first one did.
        while len(ends) < MOMENTS or (len(ends) < 4 * MOMENTS and "refused" not in ends):
            ends.append(await asks_while_it_falls(vm, session, usual * len(ends) / MOMENTS))
        print(ends)
        assert "refused" in ends


async def asks_while_it_falls(vm: Booted, session: DatabaseSession, after: float) -> str:
    """Sends a query ``after`` some seconds of falling asleep, and sees that it is answered."""
    falling = asyncio.ensure_future(sleeper(vm).fall_asleep())
    await asyncio.sleep(after)
    answer = asyncio.ensure_future(answer_to(session, f"SELECT {after}"))
    try:
        await falling
    except SleepRefusedError as error:
        print(f"{after:.2f}: {error}")
        end = "refused"
    else:
        end = "slept"
        # One that was answered before the guest slept wakes nobody.
        if not answer.done():
            await wake(vm)
            end = "woke"
    assert await answer == [[str(after)]]
    if end == "slept":
        await sleeper(vm).wake()
    return end


async def refuses(vm: Booted, reason: str) -> bool:
    """Return True if the guest refuses to sleep for this reason; a busy one may have another first."""
    with pytest.raises(SleepRefusedError) as refusal:
        await sleeper(vm).fall_asleep()
    return reason in str(refusal.value)


async def test_session_in_transaction_keeps_awake(vm: Booted) -> None:
    async with opened(vm) as session:
        await session.query("BEGIN; CREATE TEMPORARY TABLE unfinished AS SELECT 7 AS n")
        await until(lambda: refuses(vm, "transaction"), FALL, vm.guest)
        assert await value(session, "SELECT n FROM unfinished") == "7"
        await session.query("COMMIT")


async def test_damaged_image_boots_from_disk(vm: Booted) -> None:
    """Sessions are lost, committed data is not, and the reason is reported."""
    async with opened(vm) as session:
        await session.query("CREATE TABLE committed AS SELECT 42 AS n")
        await fall_asleep(vm)
        with image(vm).open("r+b") as file:
            file.seek(image(vm).stat().st_size // 2)
            byte = file.read(1)[0]
            file.seek(-1, 1)
            file.write(bytes([byte ^ 1]))
        session.begin("SELECT 1")
        assert "corrupt" in (await wake(vm)).fault
        assert not image(vm).exists()
        await until_running(vm.guest)
        with pytest.raises(DatabaseError):
            async with asyncio.timeout(RESET):
                await session.finished()
        later = await session_of(vm)
        assert await value(later, "SELECT n FROM committed") == "42"
        later.close()


HOPS: Final = 4


async def test_sleeper_wakes_on_another_node(tmp_path: Path) -> None:
    """Its session is answered there, and goes back. A move that fails leaves it asleep with its session."""
    async with travelling(NetworkKind.AUTO, tmp_path) as journey, opened(journey.here()) as session:
        await session.query(f"CREATE TEMPORARY TABLE kept AS SELECT '{MARK}' AS text")
        for _ in range(HOPS):
            await fall_asleep(journey.here())
            target, spec = await journey.target()
            await target.stop()
            with pytest.raises(TransferError, match="gone"):
                await journey.guest.send(target, LIMITS, journey.progress.append)
            await journey.drop(target, spec)
            assert (await journey.guest.state()).phase is GuestPhase.ASLEEP

            target, spec = await journey.target()
            answer = asyncio.ensure_future(answer_to(session, "SELECT text FROM kept"))
            async with asyncio.timeout(PATIENCE):
                print(await sleeper(journey.here()).woken())
            print(await journey.guest.send(target, LIMITS, journey.progress.append))
            assert await answer == [[MARK]]
            assert not image(journey.here()).exists()
            await journey.drop(journey.guest, journey.spec)
            journey.guest, journey.spec = target, spec
            assert len(machines(tmp_path)) == 1
            assert await clock_error(session) < 0.5
