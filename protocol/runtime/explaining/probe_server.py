"""A listener for probes, metrics and explanations, small enough to run beside every VM.

Rules that hold here:

- GET only, one request for each connection, a request head of at most ``LARGEST_HEAD`` within ``PATIENCE`` seconds.
- At most ``PER_PEER`` connections of an address and ``MOST_CONNECTIONS`` in all: a newer one displaces the oldest of
  its own address, or of the address with the most.
- A route is a function of the rest of the path that returns a response, or an awaitable of one.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final

from protocol.runtime.explaining.displacing import displaced, keep_waiting
from protocol.runtime.explaining.explain_access import Caller

LARGEST_HEAD: Final = 8192
PATIENCE: Final = 5.0
MOST_CONNECTIONS: Final = 64
PER_PEER: Final = 16
_ACCEPTED_AT_ONCE: Final = 1


@dataclass(frozen=True, slots=True)
class ProbeResponse:
    """Response of a route."""

    body: bytes
    status: HTTPStatus = HTTPStatus.OK
    content_type: str = "text/plain; charset=utf-8"


Route = Callable[[str], ProbeResponse | Awaitable[ProbeResponse]]
"""Answers for the rest of the path after the route's own name: ``""`` or ``"/…"``."""

Guard = Callable[[str, str, Caller], Awaitable[ProbeResponse | None]]
"""(route, rest, caller) -> the response instead of the route's; None: the route answers."""


async def anyone(_: str, __: str, ___: Caller) -> ProbeResponse | None:
    """Lets all callers in."""
    return None


@asynccontextmanager
async def listening(host: str, port: int, routes: Mapping[str, Route], guard: Guard = anyone) -> AsyncIterator[int]:
    """Serves ``routes`` (by first path segment, such as ``/metrics``) while entered; yields the port."""
    connections: dict[asyncio.StreamWriter, str] = {}

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer = _address(writer, "peername")
        oldest = displaced(connections, peer, PER_PEER, MOST_CONNECTIONS)
        if oldest is not None:
            # Removed here, since the aborted connection's handler ends later and would count until then.
            del connections[oldest]
            # abort, not close: a peer that does not read would delay a graceful end.
            oldest.transport.abort()
        connections[writer] = peer
        try:
            # A slow or broken peer only loses its own connection.
            with suppress(OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
                async with asyncio.timeout(PATIENCE):
                    head = await reader.readuntil(b"\r\n\r\n")
                    writer.write(_wire(await _answer(head, routes, guard, writer)))
                    await writer.drain()
        finally:
            connections.pop(writer, None)
            writer.close()

    # One accept per turn of the event loop, so that a request that has arrived is answered before a crowd displaces it.
    server = await asyncio.start_server(serve, host, port, limit=LARGEST_HEAD, backlog=_ACCEPTED_AT_ONCE)
    async with keep_waiting(server):
        yield server.sockets[0].getsockname()[1]


async def _answer(
    head: bytes, routes: Mapping[str, Route], guard: Guard, writer: asyncio.StreamWriter
) -> ProbeResponse:
    lines = head.split(b"\r\n")
    words = lines[0].decode(errors="replace").split(" ")
    # A request line has a method, a target and a version.
    if len(words) != 3:
        return ProbeResponse(b"not HTTP\n", HTTPStatus.BAD_REQUEST)
    method, target, _ = words
    # HEAD gets the body as well: the connection closes after it, so no client can take it for the next response.
    if method not in ("GET", "HEAD"):
        return ProbeResponse(b"GET only\n", HTTPStatus.METHOD_NOT_ALLOWED)
    path = target.split("?", 1)[0]
    first, _, rest = path.removeprefix("/").partition("/")
    route = routes.get(f"/{first}")
    if route is None:
        return ProbeResponse(f"one of: {' '.join(sorted(routes))}\n".encode(), HTTPStatus.NOT_FOUND)
    rest = f"/{rest}" if rest else ""
    refused = await guard(f"/{first}", rest, _caller(lines[1:], writer))
    if refused is not None:
        return refused
    answer = route(rest)
    return answer if isinstance(answer, ProbeResponse) else await answer


def _caller(lines: list[bytes], writer: asyncio.StreamWriter) -> Caller:
    tokens = (value for name, _, value in (line.partition(b":") for line in lines) if name.lower() == b"authorization")
    addresses = (_address(writer, end) for end in ("peername", "sockname"))
    return Caller(next(tokens, b"").strip().decode("latin-1"), *addresses)


def _address(writer: asyncio.StreamWriter, end: str) -> str:
    # Empty for an unnamed Unix socket, None if the connection is gone.
    return str((writer.get_extra_info(end) or ("",))[0])


def _wire(answer: ProbeResponse) -> bytes:
    head = (
        f"HTTP/1.1 {answer.status.value} {answer.status.phrase}\r\n"
        f"Content-Type: {answer.content_type}\r\n"
        f"Content-Length: {len(answer.body)}\r\n"
        "Connection: close\r\n\r\n"
    )
    return head.encode() + answer.body
