"""A controller writes only while it holds the Lease, even if a write had to wait."""

from __future__ import annotations

import asyncio

import httpx2 as httpx
import pytest

from deploy.neonvm.service.__main__ import FencedTransport
from protocol.units import Seconds

READ, WRITE = httpx.Request("GET", "http://api"), httpx.Request("PATCH", "http://api")


class SlowServer(httpx.AsyncBaseTransport):
    """Makes requests wait for a connection, then accepts them."""

    def __init__(self) -> None:
        self.has_room = asyncio.Event()
        self.taken: list[str] = []

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        await self.has_room.wait()
        self.taken.append(request.method)
        return httpx.Response(200)


async def test_write_after_lease_expiry_is_not_sent() -> None:
    server = SlowServer()
    fenced = FencedTransport(server, lambda: Seconds(0.01))
    with pytest.raises(httpx.ReadTimeout, match="the Lease expired before the response came"):
        await fenced.handle_async_request(WRITE)
    server.has_room.set()
    await asyncio.sleep(0)
    assert server.taken == []


async def test_without_the_lease_only_reads_are_sent() -> None:
    server = SlowServer()
    server.has_room.set()
    fenced = FencedTransport(server, lambda: Seconds(0.0))
    with pytest.raises(httpx.ConnectError, match="does not hold the Lease"):
        await fenced.handle_async_request(WRITE)
    assert (await fenced.handle_async_request(READ)).status_code == 200
    assert server.taken == ["GET"]


async def test_writes_within_the_lease_are_sent() -> None:
    server = SlowServer()
    server.has_room.set()
    assert (await FencedTransport(server, lambda: Seconds(9.0)).handle_async_request(WRITE)).status_code == 200
