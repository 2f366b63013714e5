"""The monitor in a real guest: the kernel wakes it, and its report arrives before the next scrape (B.8)."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from deploy.neonvm.addressing import LINK_GUEST, MONITOR_PORT
from deploy.neonvm.network.chooser import NetworkKind
from protocol.guest.monitor_messages import DownscaleRequest, UpscaleNotification, write_to_monitor
from protocol.units import Bytes, MilliCpu, Resources
from scripts.database_client import DatabaseSession
from tests.vm.guests import MIB, PASSWORD, Booted, booted

pytestmark = pytest.mark.vm
PATIENCE = 60
BURSTS = 6
URL = f"ws://{LINK_GUEST}:{MONITOR_PORT}/monitor"
COUNT = "SELECT count(*) FROM generate_series(1, 1000000)"
Message = dict[str, object]


@dataclass
class Heard:
    """All messages of the monitor, each with its time of arrival."""

    process: Process
    messages: list[tuple[float, Message]] = field(default_factory=list)
    _new: asyncio.Event = field(default_factory=asyncio.Event)

    async def listen(self) -> None:
        assert self.process.stdout is not None
        while line := await self.process.stdout.readline():
            self.messages.append((time.monotonic(), json.loads(line)))
            self._new.set()

    def say(self, text: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{text}\n".encode())

    async def first(
        self, is_it: Callable[[Message], bool], since: float = 0.0, within: float = PATIENCE
    ) -> tuple[float, Message]:
        """The first message of that kind after ``since``. Raises ``TimeoutError`` after ``within`` seconds."""
        async with asyncio.timeout(within):
            while True:
                for at, message in self.messages:
                    if at >= since and is_it(message):
                        return at, message
                self._new.clear()
                await self._new.wait()


@asynccontextmanager
async def listening(vm: Booted) -> AsyncIterator[Heard]:
    process = await asyncio.create_subprocess_exec(
        *("setpriv", "--pdeathsig", "KILL", "--"),
        *(*vm.place.enter, sys.executable, "-m", "tests.vm.monitor_listener", URL),
        stdin=PIPE,
        stdout=PIPE,
    )
    heard = Heard(process)
    task = asyncio.create_task(heard.listen())
    try:
        yield heard
    finally:
        process.kill()
        await process.wait()
        await task


@asynccontextmanager
async def sessions_with(port: int, count: int) -> AsyncIterator[list[DatabaseSession]]:
    """Open this many sessions at once; close them at the end in any case."""
    async with AsyncExitStack() as stack:

        async def opened() -> DatabaseSession:
            session = await DatabaseSession.open("127.0.0.1", port, PASSWORD)
            stack.callback(session.close)
            return session

        async with asyncio.timeout(PATIENCE):
            sessions = await asyncio.gather(*(opened() for _ in range(count)))
        yield sessions


@asynccontextmanager
async def connected(port: int, count: int) -> AsyncIterator[None]:
    """That many connections, opened at once, of clients that do not say who they are.

    The database begins a process for each. Passwords would keep a guest on a busy machine for seconds.
    """
    async with AsyncExitStack() as stack:

        async def opened() -> None:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            stack.callback(writer.close)

        await asyncio.gather(*(opened() for _ in range(count)))
        yield


async def reported_burst(heard: Heard, port: int) -> tuple[float, Message]:
    """Seconds until the report of twelve connections at once, and the report.

    The monitor is silent for up to 2 s after a report of load, and a guest that stands still may spread the connections
    over seconds: such a burst is not reported, and another one is tried.
    """
    for _ in range(BURSTS):
        began = time.monotonic()
        async with connected(port, 12):
            with suppress(TimeoutError):
                at, report = await heard.first(lambda each: int(str(each.get("newProcesses", 0))) >= 4, began, within=5)
                return at - began, report
    pytest.fail(f"none of {BURSTS} bursts of connections was reported")


def is_look(message: Message) -> bool:
    """Return True for a report of load from a moment alone; one of a guest that stood still may be from longer."""
    return message.get("cause") == "cpu" and float(str(message["span"])) < 1.0


def mib(count: int) -> Resources:
    return Resources(MilliCpu(1000), Bytes(count * MIB))


async def test_monitor_reports_load_connections_and_memory(tmp_path: Path) -> None:
    async with booted(NetworkKind.AUTO, tmp_path) as vm, listening(vm) as heard:
        assert (await heard.first(lambda each: "joined" in each))[1] == {"joined": 2}
        port = await vm.network.expose(vm.spec.address, 5432)
        async with sessions_with(port, 4) as sessions:
            await asyncio.sleep(5.0)
            began = time.monotonic()
            for session in sessions:
                session.begin(COUNT)
            at, report = await heard.first(is_look, began)
            print(f"the load was reported after {at - began:.3f} s: {report}")
            assert float(str(report["cpuStall"])) > 0.2
            # A session's title says what it does a moment after it has begun, so that the first report may come before.
            _, report = await heard.first(lambda each: each.get("cause") == "cpu" and each["active"] != 0, began)
            assert 1 <= int(str(report["active"])) <= len(sessions)
            async with asyncio.timeout(5 * PATIENCE):
                for session in sessions:
                    await session.finished()
            await asyncio.sleep(5.0)
            seconds, report = await reported_burst(heard, port)
            print(f"the connections were reported after {seconds:.3f} s: {report}")
            async with sessions_with(port, 12):
                heard.say(write_to_monitor(DownscaleRequest(mib(160)), 2))
                _, refused = await heard.first(lambda each: each.get("id") == 2)
                assert refused["Ok"] is False
                assert "MiB would be left for them" in str(refused["Status"])
            heard.say(write_to_monitor(UpscaleNotification(mib(512)), 4))
            assert (await heard.first(lambda each: each.get("id") == 4))[1]["type"] == "UpscaleConfirmation"


async def test_monitor_requests_memory_when_full(tmp_path: Path) -> None:
    async with booted(NetworkKind.AUTO, tmp_path) as vm, listening(vm) as heard:
        await heard.first(lambda each: "joined" in each)
        port = await vm.network.expose(vm.spec.address, 5432)
        await vm.pgbench("--initialize", "--quiet", "--scale=10")
        async with sessions_with(port, 1) as (session,):
            began = time.monotonic()
            session.begin("SELECT length(repeat('x', 270000000))")
            at, _ = await heard.first(lambda each: each.get("type") == "UpscaleRequest", began)
            print(f"memory was asked for after {at - began:.3f} s")
