"""Forwarded ports: bytes both ways, half-closed ends, and nothing left behind."""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress

import pytest

from deploy.neonvm.network.sockets import Forwarder, connected, free_port, listening, tcp_socket
from protocol.runtime.serving.tcp_listener import TcpListener


async def dial(host: str, port: int) -> socket.socket:
    return await connected(tcp_socket(), host, port)


async def echo_backwards(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Responds only after the peer has sent everything, so the end of the stream must be forwarded too."""
    said = await reader.read()
    writer.write(said[::-1])
    await writer.drain()


async def test_forwards_both_ways_with_half_close() -> None:
    echo = TcpListener([listening(tcp_socket(), "127.0.0.1", 0)], echo_backwards)
    forwarder = Forwarder(dial)
    port = await forwarder.open("127.0.0.1", echo.port)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"stressed" * 50_000)
    writer.write_eof()
    assert await reader.read() == b"desserts" * 50_000
    writer.close()
    await forwarder.close()
    await echo.close()


async def test_one_port_per_target() -> None:
    forwarder = Forwarder(dial)
    ports = [await forwarder.open("127.0.0.1", target) for target in (1, 2, 1)]
    assert ports[0] == ports[2] != ports[1]
    await forwarder.close()


async def test_a_target_where_nobody_listens_ends_the_connection() -> None:
    forwarder = Forwarder(dial)
    reader, writer = await asyncio.open_connection("127.0.0.1", await forwarder.open("127.0.0.1", free_port()))
    assert await reader.read() == b""
    writer.close()
    await forwarder.close()


async def test_close_drops_connections_and_frees_port() -> None:
    echo = TcpListener([listening(tcp_socket(), "127.0.0.1", 0)], echo_backwards)
    forwarder = Forwarder(dial)
    port = await forwarder.open("127.0.0.1", echo.port)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"unfinished")
    await writer.drain()
    await forwarder.close()
    with suppress(ConnectionResetError):
        assert await reader.read() == b""
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", port)
    writer.close()
    await echo.close()
