"""A listener for probes, metrics and explanations, small enough to run next to every VM.

- GET only, one request per connection, with a head of at most ``LARGEST_HEAD`` bytes within ``PATIENCE`` seconds.
- At most ``PER_PEER`` connections per address and ``MAX_CONNECTIONS`` in total: a new one displaces the oldest of its
  own address, or of the address with the most.
- A route is a function of the rest of the path that returns a response, or an awaitable of one.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import Final

from protocol.runtime.explaining.explain_access import Caller
from protocol.runtime.serving.http_requests import HttpResponse, NotHttpError, RequestHead, read_head, write_response
from protocol.runtime.serving.tcp_listener import ConnectionLimits, TcpListener, bound

LARGEST_HEAD: Final = 8192
PATIENCE: Final = 5.0
MAX_CONNECTIONS: Final = 64
PER_PEER: Final = 16

Route = Callable[[str], HttpResponse | Awaitable[HttpResponse]]
"""Responds for the rest of the path after the route's own name: ``""`` or ``"/…"``."""

Guard = Callable[[str, str, Caller], Awaitable[HttpResponse | None]]
"""(route, rest, caller) -> the response in place of the route's; None to call the route."""


async def anyone(_: str, __: str, ___: Caller) -> HttpResponse | None:
    """Allow all callers."""
    return None


@asynccontextmanager
async def listening(host: str, port: int, routes: Mapping[str, Route], guard: Guard = anyone) -> AsyncIterator[int]:
    """Serve ``routes`` (by first path segment, such as ``/metrics``) within the block; yields the port."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async with asyncio.timeout(PATIENCE):
            try:
                head = await read_head(reader)
                response = None if head is None else await _answer(head, routes, guard, writer)
            except NotHttpError:
                response = HttpResponse(b"not HTTP\n", HTTPStatus.BAD_REQUEST)
            if response is not None:
                await write_response(writer, response, "Connection: close")

    limits = ConnectionLimits(PER_PEER, MAX_CONNECTIONS)
    listener = TcpListener(await bound(host, port), serve, limits, LARGEST_HEAD)
    try:
        yield listener.port
    finally:
        await listener.close()


async def _answer(
    head: RequestHead, routes: Mapping[str, Route], guard: Guard, writer: asyncio.StreamWriter
) -> HttpResponse:
    # HEAD also gets the body: the connection closes after it, so no client can mistake it for another response.
    if head.method not in ("GET", "HEAD"):
        return HttpResponse(b"GET only\n", HTTPStatus.METHOD_NOT_ALLOWED)
    path = head.target.split("?", 1)[0]
    first, _, rest = path.removeprefix("/").partition("/")
    route = routes.get(f"/{first}")
    if route is None:
        return HttpResponse(f"one of: {' '.join(sorted(routes))}\n".encode(), HTTPStatus.NOT_FOUND)
    rest = f"/{rest}" if rest else ""
    peer, local = (_address(writer, end) for end in ("peername", "sockname"))
    authorization, host = (head.headers.get(name, "") for name in ("authorization", "host"))
    refused = await guard(f"/{first}", rest, Caller(authorization, peer, local, host))
    if refused is not None:
        return refused
    answer = route(rest)
    return answer if isinstance(answer, HttpResponse) else await answer


def _address(writer: asyncio.StreamWriter, end: str) -> str:
    # Empty for an unnamed Unix socket, None if the connection is gone.
    return str((writer.get_extra_info(end) or ("",))[0])
