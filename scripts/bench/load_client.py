"""The client side of a measurement: persistent loopback connections, prepared requests, the latency of each answer."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from protocol.units import Seconds

REQUEST_TIMEOUT: Final = Seconds(60.0)


class BenchError(Exception):
    """A measurement failed or cannot be trusted; the message says why."""


def post(path: str, body: bytes, token: str = "") -> bytes:
    """A POST of JSON, with a bearer token if one is given."""
    lines = [f"POST {path} HTTP/1.1", "Host: bench", "Content-Type: application/json", f"Content-Length: {len(body)}"]
    if token:
        lines.append(f"Authorization: Bearer {token}")
    return "\r\n".join([*lines, "", ""]).encode() + body


class Connection:
    """One persistent connection; carries one request at a time."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def ask(self, request: bytes) -> tuple[int, bytes]:
        """The status and body of the answer."""
        self._writer.write(request)
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


class Connectable(Protocol):
    """A server that can be connected to."""

    async def connect(self) -> Connection:
        """A new connection to it."""


@dataclass(frozen=True, slots=True)
class LoopbackServer:
    """A server that answers on a loopback port."""

    port: int

    async def connect(self) -> Connection:
        """A new connection to it."""
        return Connection(*await asyncio.open_connection("127.0.0.1", self.port))


@dataclass(frozen=True, slots=True)
class TimedResponse:
    """The body of an answer, and the seconds until it was there."""

    body: bytes
    seconds: float


async def ask_all(server: Connectable, requests: Sequence[bytes], connections: int) -> list[TimedResponse]:
    """The answers to all requests, in their order. Raises ``BenchError`` if one is refused."""
    answers: dict[int, TimedResponse] = {}
    queue = iter(enumerate(requests))

    async def one() -> None:
        connection = await server.connect()
        # All connections draw from one iterator, so that none is idle while requests are left.
        for number, request in queue:
            began = time.perf_counter()
            status, body = await connection.ask(request)
            answers[number] = TimedResponse(body, time.perf_counter() - began)
            if status >= 300:
                raise BenchError(f"answered {status}: {body[:300]!r}")
        connection.close()

    async with asyncio.TaskGroup() as tasks:
        for _ in range(min(connections, len(requests))):
            tasks.create_task(one())
    return [answers[number] for number in range(len(requests))]


async def timed(server: Connectable, requests: Sequence[bytes], connections: int) -> list[float]:
    """The latency of each answer in seconds. Raises ``BenchError`` if a request is refused."""
    async with asyncio.timeout(REQUEST_TIMEOUT):
        return [answer.seconds for answer in await ask_all(server, requests, connections)]
