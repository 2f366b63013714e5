"""A listener for probes, metrics and explanations, small enough to stand beside every VM.

Rules that hold here:

- GET only, one request for each connection, a request head of at most ``LARGEST_HEAD`` within ``PATIENCE`` seconds.
- A route is a function of the path's rest that returns an answer at once, or one that asks the guest first.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final

LARGEST_HEAD: Final = 8192
PATIENCE: Final = 5.0


@dataclass(frozen=True, slots=True)
class Answer:
    """What a route says."""

    body: bytes
    status: HTTPStatus = HTTPStatus.OK
    content_type: str = "text/plain; charset=utf-8"


Route = Callable[[str], Answer | Awaitable[Answer]]
"""Answers for the rest of the path after the route's own name: ``""`` or ``"/…"``."""


@asynccontextmanager
async def listening(host: str, port: int, routes: Mapping[str, Route]) -> AsyncIterator[int]:
    """Serves ``routes`` (by first path segment, such as ``/metrics``) while entered; yields the port."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with suppress(OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
                async with asyncio.timeout(PATIENCE):
                    head = await reader.readuntil(b"\r\n\r\n")
                    answer = _answer(head, routes)
                    writer.write(_wire(answer if isinstance(answer, Answer) else await answer))
                    await writer.drain()
        finally:
            writer.close()

    server = await asyncio.start_server(serve, host, port, limit=LARGEST_HEAD)
    async with server:
        yield server.sockets[0].getsockname()[1]


def _answer(head: bytes, routes: Mapping[str, Route]) -> Answer | Awaitable[Answer]:
    words = head.split(b"\r\n", 1)[0].decode(errors="replace").split(" ")
    if len(words) != 3:
        return Answer(b"not HTTP\n", HTTPStatus.BAD_REQUEST)
    method, target, _ = words
    if method not in ("GET", "HEAD"):
        return Answer(b"GET only\n", HTTPStatus.METHOD_NOT_ALLOWED)
    path = target.split("?", 1)[0]
    first, _, rest = path.removeprefix("/").partition("/")
    route = routes.get(f"/{first}")
    if route is None:
        return Answer(f"one of: {' '.join(sorted(routes))}\n".encode(), HTTPStatus.NOT_FOUND)
    return route(f"/{rest}" if rest else "")


def _wire(answer: Answer) -> bytes:
    head = (
        f"HTTP/1.1 {answer.status.value} {answer.status.phrase}\r\n"
        f"Content-Type: {answer.content_type}\r\n"
        f"Content-Length: {len(answer.body)}\r\n"
        "Connection: close\r\n\r\n"
    )
    return head.encode() + answer.body
