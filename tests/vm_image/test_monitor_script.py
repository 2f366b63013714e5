"""The guest's monitor, as it is in the image, talks with the agent's own side, over files that a test writes.

What only a kernel does (pressure triggers) is tested in a real guest: ``tests/vm/test_guest_monitor.py``.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from agent.adapters.guest_monitor import GuestConnection, GuestMonitor
from agent.ports import PortError
from deploy.neonvm.network.sockets import free_port
from protocol.guest.monitor_messages import (
    CheckHealth,
    DownscaleRequest,
    DownscaleResult,
    HealthCheck,
    InvalidMessage,
    LoadReport,
    NotUnderstood,
    UpscaleConfirmation,
    UpscaleNotification,
)
from protocol.units import Bytes, MilliCpu, Resources, Seconds
from vm_image import recipe

pytestmark = pytest.mark.skipif(shutil.which("perl") is None, reason="this machine has no perl")
DEADLINE = Seconds(10.0)
MIB = 1024**2
ALONE = 'BEGIN { @INC = ($ENV{MODULES}) } @ARGV = "127.0.0.1"; do $ENV{SCRIPT} or die $@ || $!'
"""Runs the script as the guest does: without any module but two."""


@dataclass
class Guest:
    """Files as a kernel shows them, and the monitor that reads them."""

    folder: Path
    port: int

    @property
    def source(self) -> GuestMonitor:
        return GuestMonitor(f"ws://127.0.0.1:{self.port}/monitor", DEADLINE)

    def has(self, *, total: int = 1024, available: int = 900, stalled: float = 0.0, processes: int = 8) -> None:
        """So many MiB of memory, tasks that wait for it for this many percent of the time, and processes."""
        self._write("meminfo", f"MemTotal: {total * 1024} kB\nMemFree: 1 kB\nMemAvailable: {available * 1024} kB\n")
        self._write("memory.pressure", f"some avg10={stalled:.2f} avg60=0.00 avg300=0.00 total=1\n")
        self._write("pids.current", f"{processes}\n")

    def runs(self, *titles: str) -> None:
        """Processes of the database with these titles, and one that ended just now."""
        for number, title in enumerate(titles, start=100):
            (self.folder / str(number)).mkdir()
            (self.folder / str(number) / "cmdline").write_bytes(title.encode() + bytes(60))
        self._write("cgroup.procs", "".join(f"{number}\n" for number in range(99, 100 + len(titles))))

    def read(self, name: str) -> str:
        return (self.folder / name).read_text().strip()

    def _write(self, name: str, text: str) -> None:
        with (self.folder / name).open("r+" if (self.folder / name).exists() else "w") as file:
            file.write(text)
            file.truncate()


@pytest.fixture
async def guest(tmp_path: Path) -> AsyncIterator[Guest]:
    modules = tmp_path / "modules"
    modules.mkdir()
    for name in ("strict.pm", "warnings.pm"):
        found = await _output("perl", "-e", f"require {name[:-3]}; print $INC{{'{name}'}}")
        shutil.copy(found, modules)
    port = free_port()
    made = Guest(tmp_path, port)
    made.has()
    for name, text in {
        "loadavg": "0.1 0.1 0.1 3/99 1\n",
        "cpu.pressure": "some avg10=0.00 avg60=0.00 avg300=0.00 total=1000\n",
        "cpu.stat": "usage_usec 1000\n",
        "memory.events": "high 0\n",
        "memory.current": f"{64 * MIB}\n",
        "memory.high": "1048576\n",
    }.items():
        (tmp_path / name).write_text(text)
    process = await asyncio.create_subprocess_exec(
        *("perl", "-e", ALONE),
        env={
            **os.environ,
            "MODULES": str(modules),
            "SCRIPT": str(recipe.HERE / "rootfs" / "monitor.pl"),
            "AUTOSCALE_PROC": str(tmp_path),
            "AUTOSCALE_GROUP": str(tmp_path),
            "AUTOSCALE_PORT": str(port),
        },
    )
    async with AsyncExitStack() as stack:
        await begun(made, stack)  # by then it has opened its files, and written its triggers over some of them
    made.has()
    yield made
    process.kill()
    await process.wait()


async def _output(*command: str) -> str:
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    return (await process.communicate())[0].decode()


async def begun(guest: Guest, stack: AsyncExitStack) -> GuestConnection:
    """A conversation, once the monitor listens."""
    async with asyncio.timeout(DEADLINE):
        while True:
            try:
                return await stack.enter_async_context(guest.source.connect())
            except PortError:
                await asyncio.sleep(0.01)


def size(mib: int) -> Resources:
    return Resources(MilliCpu(1000), Bytes(mib * MIB))


async def test_monitor_releases_its_predecessors_limit(guest: Guest) -> None:
    assert guest.read("memory.high") == "max"


async def test_monitor_answers_every_message(guest: Guest) -> None:
    async with AsyncExitStack() as stack:
        talk = await begun(guest, stack)
        assert talk.version == 2
        await talk.send(CheckHealth(), 2)
        await talk.send(UpscaleNotification(size(1024)), 4)
        await talk.send(NotUnderstood(6, "what?"), 6)
        await talk.write('{"type":"Novelty","id":8}')
        await talk.write("{}")
        said = [await talk.receive() for _ in range(4)]
    assert said == [
        HealthCheck(2),
        UpscaleConfirmation(4),
        InvalidMessage(8, "neither type nor fields are of this protocol"),
        InvalidMessage(0, "a message needs an id"),
    ]


async def test_monitor_accepts_shrink_and_limits_database(guest: Guest) -> None:
    async with AsyncExitStack() as stack:
        talk = await begun(guest, stack)
        await talk.send(DownscaleRequest(size(512)), 2)
        assert await talk.receive() == DownscaleResult(2, ok=True, status="there is room")
        assert guest.read("memory.high") == str((512 - 100 - (124 - 64)) * MIB), "less kernel, less other programs"
        await talk.send(UpscaleNotification(size(1024)), 4)
        assert await talk.receive() == UpscaleConfirmation(4)
        assert guest.read("memory.high") == "max"


@pytest.mark.parametrize(
    ("available", "stalled", "reason"),
    [
        (600, 0.0, "programs use 424 MiB, and 412 MiB would be left for them"),
        (650, 0.0, "programs use 374 MiB, and 412 MiB would be left for them"),
        (900, 25.0, "tasks wait for memory 25.00% of the time"),
    ],
)
async def test_monitor_refuses_harmful_shrink(guest: Guest, available: int, stalled: float, reason: str) -> None:
    guest.has(available=available, stalled=stalled)
    async with AsyncExitStack() as stack:
        talk = await begun(guest, stack)
        await talk.send(DownscaleRequest(size(512)), 2)
        assert await talk.receive() == DownscaleResult(2, ok=False, status=reason)
    assert guest.read("memory.high") == "max"


async def test_monitor_reports_burst_of_connections(guest: Guest) -> None:
    async with AsyncExitStack() as stack:
        talk = await begun(guest, stack)
        await talk.send(CheckHealth(), 2)
        await talk.receive()
        guest.has(processes=20)
        async with asyncio.timeout(DEADLINE):
            report = await talk.receive()
    assert isinstance(report, LoadReport)
    assert (report.cause, report.runnable, report.processes, report.new_processes) == ("connections", 3, 20, 12)


async def test_report_counts_active_and_waiting_connections(guest: Guest) -> None:
    guest.runs(
        "postgres: checkpointer ",
        "postgres: shop: app orders 10.0.0.7(40312) SELECT",
        "postgres: app orders 10.0.0.7(40313) UPDATE waiting",
        "postgres: app orders ::1(40314) idle in transaction",
        "postgres: app (1) idle [local] INSERT",
        "postgres: app orders [local] idle",
        "perl monitor.pl (1) SELECT",
    )
    async with AsyncExitStack() as stack:
        talk = await begun(guest, stack)
        guest.has(processes=20)
        async with asyncio.timeout(DEADLINE):
            report = await talk.receive()
    assert isinstance(report, LoadReport)
    assert (report.active, report.waiting) == (3, 1)


async def test_monitor_accepts_fragmented_messages(guest: Guest) -> None:
    """Their library ends every message with an empty part; a ping may come between two."""
    async with connect(f"ws://127.0.0.1:{guest.port}/monitor", compression=None) as agent:
        await agent.send(['{"min":1,"max":1}\n'])
        assert await said(agent) == {"version": 1}
        await agent.send(
            ['{"content":{"target":{"cpu":0.25,', '"mem":1073741824}},"type":"Downscale', 'Request","id":2}']
        )
        assert await said(agent) == {"Ok": True, "Status": "there is room", "type": "DownscaleResult", "id": 2}

        async def with_a_ping_between() -> AsyncIterator[str]:
            yield '{"content":{},"type":"HealthCheck"'
            async with asyncio.timeout(DEADLINE):
                await (await agent.ping())
            yield ',"id":4}'

        await agent.send(with_a_ping_between())
        assert await said(agent) == {"type": "HealthCheck", "id": 4}


async def said(agent: ClientConnection) -> object:
    async with asyncio.timeout(DEADLINE):
        return json.loads(await agent.recv())


@pytest.mark.parametrize(
    ("frames", "code"),
    [
        pytest.param([(0x00, b"{}")], 1002, id="a part of nothing"),
        pytest.param([(0x01, b"{"), (0x81, b"}")], 1002, id="a message within another"),
        pytest.param([(0x09, b"?")], 1002, id="a ping in parts"),
        pytest.param([(0x01, b" " * 2000), (0x00, b" " * 2000), (0x80, b" " * 2000)], 1009, id="too long as a whole"),
    ],
)
async def test_malformed_fragments_close_the_connection(
    guest: Guest, frames: list[tuple[int, bytes]], code: int
) -> None:
    async with connect(f"ws://127.0.0.1:{guest.port}/monitor", compression=None) as agent:
        for first, text in frames:
            length = bytes([0x80 | len(text)]) if len(text) < 126 else b"\xfe" + len(text).to_bytes(2, "big")
            agent.transport.write(bytes([first]) + length + bytes(4) + text)
        with pytest.raises(ConnectionClosed) as ended:
            await said(agent)
    assert ended.value.rcvd is not None
    assert ended.value.rcvd.code == code


async def test_newest_agent_replaces_the_previous(guest: Guest) -> None:
    async with AsyncExitStack() as stack:
        first = await begun(guest, stack)
        second = await begun(guest, stack)
        with pytest.raises(PortError):
            await first.receive()
        await second.send(CheckHealth(), 2)
        assert await second.receive() == HealthCheck(2)


@pytest.mark.parametrize(
    "sent",
    [
        b"GET /other HTTP/1.1\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n",
        b"GET /monitor HTTP/1.1\r\n\r\n",
        b"x" * 20_000,
        b"\0" * 20_000,
    ],
)
async def test_non_websocket_client_is_disconnected(guest: Guest, sent: bytes) -> None:
    async with AsyncExitStack() as stack:
        await begun(guest, stack)
        reader, writer = await asyncio.open_connection("127.0.0.1", guest.port)
        writer.write(sent)
        async with asyncio.timeout(DEADLINE):
            try:
                answer = await reader.read()
            except ConnectionResetError:
                answer = b""
        assert answer == b"" or answer.startswith(b"HTTP/1.1 400 ")
        writer.close()
        talk = await begun(guest, stack)
        await talk.send(CheckHealth(), 2)
        assert await talk.receive() == HealthCheck(2)
