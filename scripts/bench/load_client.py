"""Load generator: sends prepared HTTP requests over persistent connections and measures their latencies."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from protocol.runtime.http_connection import HttpConnection
from protocol.units import Seconds

REQUEST_TIMEOUT: Final = Seconds(60.0)
_LONGEST_RESPONSE: Final = 2**26


class BenchError(Exception):
    """A measurement failed."""


def http_request(method: str, path: str, token: str, body: bytes = b"", **headers: str) -> bytes:
    """An HTTP request with a JSON body and a bearer token, as bytes."""
    lines = {"Host": "bench", "Content-Type": "application/json", "Content-Length": str(len(body))}
    lines |= {"Authorization": f"Bearer {token}"} | {name.replace("_", "-"): value for name, value in headers.items()}
    head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
    return f"{method} {path} HTTP/1.1\r\n{head}\r\n".encode() + body


Connect = Callable[[], Awaitable[HttpConnection]]


async def response_to(connection: HttpConnection, request: bytes) -> bytes:
    """Send a request; return the response body. Raises ``BenchError`` and the errors of ``HttpConnection.exchange``."""
    deadline = asyncio.get_running_loop().time() + REQUEST_TIMEOUT
    head, body = await connection.exchange(request, deadline, _LONGEST_RESPONSE)
    if not head.is_success:
        raise BenchError(f"HTTP {head.status}: {body[:300]!r}")
    return body


async def send_all(connect: Connect, requests: Sequence[bytes], connections: int) -> list[tuple[bytes, float]]:
    """Send all requests; return each response's body and latency (s), in order. Raises ``BenchError``."""
    responses: dict[int, tuple[bytes, float]] = {}
    queue = iter(enumerate(requests))

    async def worker() -> None:
        connection = await connect()
        # The workers share one iterator.
        for number, request in queue:
            started = time.perf_counter()
            responses[number] = await response_to(connection, request), time.perf_counter() - started
        connection.close()

    async with asyncio.TaskGroup() as tasks:
        for _ in range(min(connections, len(requests))):
            tasks.create_task(worker())
    return [responses[number] for number in range(len(requests))]


async def measure_latencies(connect: Connect, requests: Sequence[bytes], connections: int) -> list[float]:
    """Send all requests; return each response's latency in seconds. Raises ``BenchError``."""
    async with asyncio.timeout(REQUEST_TIMEOUT):
        return [seconds for _, seconds in await send_all(connect, requests, connections)]
