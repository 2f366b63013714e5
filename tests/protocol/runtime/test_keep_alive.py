"""Connections that end when their other end is gone, and clients that keep no cookies."""

from __future__ import annotations

import asyncio
import socket

import httpx2 as httpx

from protocol.runtime.keep_alive import KEEPALIVE, no_cookies, probed_transport
from tests.plain_http import TRUSTS_NONE


async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readuntil(b"\r\n\r\n")
    writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n")
    writer.close()


async def test_idle_connection_is_probed() -> None:
    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
    client = httpx.AsyncClient(transport=probed_transport(TRUSTS_NONE, httpx.Limits()))
    async with server, client, client.stream("GET", url) as response:
        raw: socket.socket = response.extensions["network_stream"].get_extra_info("socket")
        found = [(level, option, raw.getsockopt(level, option)) for level, option, _ in KEEPALIVE]
    assert found == list(KEEPALIVE)


async def test_client_stores_no_cookies() -> None:
    """Each response of a tenant's pod added to the memory of a client, and to its later requests."""
    asked: list[httpx.Request] = []

    def say(request: httpx.Request) -> httpx.Response:
        asked.append(request)
        return httpx.Response(200, headers={"Set-Cookie": f"c{len(asked)}=x; Max-Age=1000"})

    async with httpx.AsyncClient(transport=httpx.MockTransport(say), cookies=no_cookies()) as client:
        await client.get("http://10.0.0.7/")
        await client.get("http://10.0.0.7/")
        assert len(client.cookies.jar) == 0
    assert "cookie" not in asked[1].headers
