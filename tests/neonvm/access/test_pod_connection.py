"""A pod that sends without end takes no more than its share of the controller."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from deploy.neonvm.access import pod_connection
from deploy.neonvm.access.keys import PodIdentity
from deploy.neonvm.access.pod_connection import PodConnection
from deploy.neonvm.network.sockets import listening, tcp_socket
from tests.neonvm.access.secured_pod import pem, showing
from tests.neonvm.access.tls_flood import flood

SIZE = 1 << 20


@asynccontextmanager
async def pod(serve: Callable[[socket.socket], Awaitable[None]]) -> AsyncIterator[int]:
    """The port at which ``serve`` accepts connections."""
    with listening(tcp_socket(), "127.0.0.1", 0) as listener:
        serving = asyncio.ensure_future(serve(listener))
        yield listener.getsockname()[1]
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)


async def sends_zeros(listener: socket.socket) -> None:
    client, _ = await asyncio.get_running_loop().sock_accept(listener)
    with client:
        await asyncio.get_running_loop().sock_sendall(client, bytes(SIZE))


async def test_flood_without_data_leaves_others_their_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """OpenSSL reads until there is data: the controller once hung for as long as the pod sent session tickets."""
    monkeypatch.setattr(pod_connection, "RATE", 1 << 40)
    context, turns = PodIdentity("db-x", pem(), Path()).context(), 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async with pod(lambda listener: flood(listener, context, tmp_path, SIZE)) as port:
        connection = await PodConnection.opened("127.0.0.1", port, showing().context)
        other = asyncio.create_task(others())
        assert await connection.reader.read() == b"x"
        other.cancel()
        connection.close()
    assert turns >= SIZE // (16 * 1024)


async def test_lost_connection_is_a_fault() -> None:
    async def resets(listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        client, _ = await loop.sock_accept(listener)
        await loop.sock_recv(client, 1)
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        client.close()

    async with pod(resets) as port:
        connection = await PodConnection.opened("127.0.0.1", port, None)
        await connection.send(b"x")
        with pytest.raises(ConnectionResetError):
            await connection.reader.read()
        connection.close()


async def test_bytes_beyond_the_burst_take_their_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pod_connection, "RATE", 8 * SIZE)
    monkeypatch.setattr(pod_connection, "BURST", SIZE // 2)
    loop = asyncio.get_running_loop()
    async with pod(sends_zeros) as port:
        began, connection = loop.time(), await PodConnection.opened("127.0.0.1", port, None)
        assert len(await connection.reader.read()) == SIZE
        assert loop.time() - began >= 1 / 16
        connection.close()


async def test_unread_bytes_stay_with_the_pod(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pod_connection, "RATE", 1 << 40)
    async with pod(sends_zeros) as port:
        connection = await PodConnection.opened("127.0.0.1", port, None)
        for _ in range(1000):
            await asyncio.sleep(0)
        assert not connection._may_read.is_set()
        assert len(await connection.reader.readexactly(SIZE)) == SIZE
        connection.reset()
