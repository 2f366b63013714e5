"""Load generator: sends prepared HTTP requests over persistent connections and measures their latencies."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from protocol.units import Seconds

REQUEST_TIMEOUT: Final = Seconds(60.0)


class BenchError(Exception):
    """A measurement failed."""


def http_request(method: str, path: str, token: str, body: bytes = b"", **headers: str) -> bytes:
    """An HTTP request with a JSON body and a bearer token, as bytes."""
    lines = {"Host": "bench", "Content-Type": "application/json", "Content-Length": str(len(body))}
    lines |= {"Authorization": f"Bearer {token}"} | {name.replace("_", "-"): value for name, value in headers.items()}
    head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
    return f"{method} {path} HTTP/1.1\r\n{head}\r\n".encode() + body


class Connection:
    """One persistent connection; sends one request at a time."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def send(self, request: bytes) -> tuple[int, bytes]:
        """Send a request; return the status and body of the response."""
        self._writer.write(request)
        # Header names are case-insensitive.
        head = (await self._reader.readuntil(b"\r\n\r\n")).lower()
        # The status follows "http/1.1 ".
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
        """Close the connection."""
        self._writer.close()


Connect = Callable[[], Awaitable[Connection]]


async def send_all(connect: Connect, requests: Sequence[bytes], connections: int) -> list[tuple[bytes, float]]:
    """Send all requests; return each response's body and latency (s), in order. Raises ``BenchError``."""
    responses: dict[int, tuple[bytes, float]] = {}
    queue = iter(enumerate(requests))

    async def worker() -> None:
        connection = await connect()
        # The workers share one iterator.
        for number, request in queue:
            started = time.perf_counter()
            status, body = await connection.send(request)
            responses[number] = body, time.perf_counter() - started
            if status >= 300:
                raise BenchError(f"HTTP {status}: {body[:300]!r}")
        connection.close()

    async with asyncio.TaskGroup() as tasks:
        for _ in range(min(connections, len(requests))):
            tasks.create_task(worker())
    return [responses[number] for number in range(len(requests))]


async def measure_latencies(connect: Connect, requests: Sequence[bytes], connections: int) -> list[float]:
    """Send all requests; return each response's latency in seconds. Raises ``BenchError``."""
    async with asyncio.timeout(REQUEST_TIMEOUT):
        return [seconds for _, seconds in await send_all(connect, requests, connections)]
