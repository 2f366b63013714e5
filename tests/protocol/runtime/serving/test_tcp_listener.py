"""Connections of a listener: who gives a place away, what a peer that does not read costs, and how all end."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest

from protocol.runtime.serving.tcp_listener import ConnectionLimits, StreamPair, TcpListener, bound

ANSWER = b"x" * 32 * 1024 * 1024
"""More than the kernel and asyncio take for a peer that does not read."""


@dataclass
class Served:
    """Serves connections: each says hello, or more, and waits for its peer to hang up. ``ended`` counts."""

    answer: bytes = b"hello"
    keeps: bool = False
    listener: TcpListener = field(init=False)
    begun: int = 0
    ended: int = 0
    has_ended: asyncio.Event = field(default_factory=asyncio.Event)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.begun += 1
        if self.keeps:
            self.listener.keep()
        try:
            writer.write(self.answer)
            await reader.read()
        finally:
            self.ended += 1
            self.has_ended.set()


@asynccontextmanager
async def serving(served: Served, limits: ConnectionLimits | None = None) -> AsyncIterator[Callable[[], socket.socket]]:
    """A way to connect; the listener closes in the end."""
    served.listener = TcpListener(await bound("127.0.0.1", 0), served.serve, limits)
    port = served.listener.port
    opened: list[socket.socket] = []

    def connect() -> socket.socket:
        opened.append(socket.create_connection(("127.0.0.1", port), 5))
        opened[-1].setblocking(False)
        return opened[-1]

    try:
        yield connect
    finally:
        async with asyncio.timeout(2):
            await served.listener.close()
        for connection in opened:
            connection.close()


async def received(connection: socket.socket) -> bytes:
    async with asyncio.timeout(2):
        return await asyncio.get_running_loop().sock_recv(connection, 100)


async def test_close_ends_all_connections() -> None:
    served = Served()
    async with serving(served) as connect:
        clients = [connect() for _ in range(3)]
        assert [await received(client) for client in clients] == [b"hello"] * 3
        await served.listener.close()
        assert [await received(client) for client in clients] == [b""] * 3
        with pytest.raises(ConnectionRefusedError):
            connect()
    assert (served.begun, served.ended) == (3, 3)


async def test_close_does_not_wait_for_stalled_peers() -> None:
    served = Served(ANSWER)
    async with serving(served) as connect:
        assert await received(connect())
    assert served.ended == 1


async def test_unread_answer_keeps_its_place() -> None:
    """Its bytes are memory, so it counts after it was served, and a newer connection displaces it."""
    served = Served(ANSWER)
    async with serving(served, ConnectionLimits(per_peer=2, total=2)) as connect:
        unread = connect()
        assert await received(unread)
        unread.shutdown(socket.SHUT_WR)
        async with asyncio.timeout(2):
            await served.has_ended.wait()
        assert len(served.listener._displaceable) == 1
        for _ in range(2):
            assert await received(connect())
        assert len(served.listener._displaceable) == 2


async def test_kept_connection_is_not_displaced() -> None:
    served = Served(keeps=True)
    async with serving(served, ConnectionLimits(per_peer=1, total=1)) as connect:
        for _ in range(3):
            assert await received(connect()) == b"hello"
        assert served.ended == 0


class Refusing(TcpListener):
    """Rejects every connection."""

    async def opened(self, connection: socket.socket, address: str) -> StreamPair:
        raise ConnectionError


async def test_connection_that_cannot_be_opened_is_closed() -> None:
    served = Served()
    listener = Refusing(await bound("127.0.0.1", 0), served.serve)
    reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
    async with asyncio.timeout(2):
        assert await reader.read() == b""
    writer.close()
    await listener.close()
    assert served.begun == 0


class Full(socket.socket):
    """Has no files left."""

    def accept(self) -> tuple[socket.socket, object]:
        raise OSError(errno.EMFILE, "too many open files")


async def test_failing_accept_is_reported_once() -> None:
    reports: list[str] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reports.append(context["message"]))
    (listening,) = await bound("127.0.0.1", 0)
    listener = TcpListener([Full(fileno=listening.detach())], Served().serve)
    await asyncio.sleep(0.15)
    await listener.close()
    assert reports == ["cannot accept a connection"]


async def test_taken_port_is_an_error() -> None:
    (taken,) = await bound("127.0.0.1", 0)
    with taken, pytest.raises(OSError, match="in use"):
        await bound("127.0.0.1", taken.getsockname()[1])
