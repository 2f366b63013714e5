"""The client side of a measurement: persistent loopback connections, prepared requests, the latency of each answer."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from protocol.units import Seconds

START_TIMEOUT: Final = Seconds(120.0)
REQUEST_TIMEOUT: Final = Seconds(60.0)
STOP_TIMEOUT: Final = Seconds(10.0)


class BenchError(Exception):
    """A measurement failed or cannot be trusted; the message says why."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """A request as the bytes that travel."""

    data: bytes


def post(path: str, body: bytes, token: str = "") -> Prepared:
    """A POST of JSON, with a bearer token if one is given."""
    lines = [f"POST {path} HTTP/1.1", "Host: bench", "Content-Type: application/json", f"Content-Length: {len(body)}"]
    if token:
        lines.append(f"Authorization: Bearer {token}")
    return Prepared("\r\n".join([*lines, "", ""]).encode() + body)


class Connection:
    """One persistent connection; carries one request at a time."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def ask(self, request: Prepared) -> tuple[int, bytes]:
        """The status and body of the answer."""
        self._writer.write(request.data)
        head = (await self._reader.readuntil(b"\r\n\r\n")).lower()
        if b"transfer-encoding: chunked" in head:
            return int(head[9:12]), await self._chunks()
        length = int(head.partition(b"content-length:")[2].partition(b"\r\n")[0])
        return int(head[9:12]), await self._reader.readexactly(length)

    async def _chunks(self) -> bytes:
        chunks = []
        while size := int(await self._reader.readuntil(b"\r\n"), 16):
            chunks.append(await self._reader.readexactly(size))
            await self._reader.readexactly(2)
        await self._reader.readexactly(2)
        return b"".join(chunks)

    def close(self) -> None:
        """Ends the connection."""
        self._writer.close()


@dataclass(frozen=True, slots=True)
class ServedLoad:
    """A server process that answers on a loopback port; ``pid`` is 0 if it is not known."""

    port: int
    pid: int = 0

    async def connect(self) -> Connection:
        """A new connection to it."""
        # Answers for thousands of nodes are large: the default limit of 64 KiB would pause reading all the time.
        return Connection(*await asyncio.open_connection("127.0.0.1", self.port, limit=2**24))

    def cpu(self) -> float:
        """The CPU seconds that its event loop has used so far."""
        # Nanoseconds of the main thread, which runs the event loop; other threads do not count.
        return int(Path(f"/proc/{self.pid}/schedstat").read_text().split()[0]) / 1e9


@asynccontextmanager
async def serving(kind: str, nodes: int = 0, vms: int = 0, pending: int = 0) -> AsyncIterator[ServedLoad]:
    """Runs ``scripts.bench.measured_server`` in a process of its own for as long as the block lasts."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen(512)
        port = listening.getsockname()[1]
        # The server inherits the socket, so that clients can connect before it has started.
        command = [sys.executable, "-m", "scripts.bench.measured_server", kind, str(listening.fileno())]
        process = await asyncio.create_subprocess_exec(
            *command,
            *map(str, (nodes, vms, pending)),
            pass_fds=(listening.fileno(),),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
    try:
        yield ServedLoad(port, process.pid)
    finally:
        if process.returncode is None:
            process.terminate()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(STOP_TIMEOUT):
                await process.wait()
        if process.returncode is None:
            process.kill()
            await process.wait()


async def wait_until_answered(served: ServedLoad, request: Prepared, is_good: bytes) -> None:
    """Repeats the request until the answer contains ``is_good``. Raises ``BenchError`` after ``START_TIMEOUT``."""
    answer = b""
    try:
        async with asyncio.timeout(START_TIMEOUT):
            while is_good not in answer:
                connection = await served.connect()
                _, answer = await connection.ask(request)
                connection.close()
                await asyncio.sleep(0.2)
    except TimeoutError:
        raise BenchError(f"the server did not become ready; its last answer was {answer[:200]!r}") from None


class Connectable(Protocol):
    """A server that can be connected to."""

    async def connect(self) -> Connection:
        """A new connection to it."""


async def timed(served: Connectable, requests: Sequence[Prepared], connections: int) -> list[float]:
    """Sends all requests over ``connections``; returns each latency in seconds. Raises ``BenchError`` on any error."""
    queue = iter(requests)
    times: list[float] = []

    async def one() -> None:
        connection = await served.connect()
        # All connections draw from one iterator, so that none is idle while requests are left.
        for request in queue:
            began = time.perf_counter()
            status, body = await connection.ask(request)
            times.append(time.perf_counter() - began)
            # The extender answers 200 with the error in the body.
            if status != 200 or (b'"Error":"' in body and b'"Error":""' not in body):
                raise BenchError(f"answered {status}: {body[:300]!r}")
        connection.close()

    async with asyncio.timeout(REQUEST_TIMEOUT), asyncio.TaskGroup() as tasks:
        for _ in range(connections):
            tasks.create_task(one())
    return times
