"""A way to the API server that fails as networks, load balancers and busy servers do.

It speaks TLS and HTTP/1.1 on both sides, one connection there for each connection here. Faults are for connections
that exist and for new ones, whatever is asked over them.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Final

from tests.kubernetes.failing.bare_control_plane import ADDRESS, BareControlPlane

_RESET: Final = struct.pack("ii", 1, 0)
_LONGEST_HEAD: Final = 64 * 1024


@dataclass(slots=True)
class Asked:
    """One request, when it came (monotonic), and the status that it was answered with; 0 for none."""

    method: str
    target: str
    at: float
    status: int = 0

    @property
    def is_watch(self) -> bool:
        """True if it asked for changes."""
        return "watch=true" in self.target

    @property
    def is_list(self) -> bool:
        """True if it asked for whole objects of a kind, page by page."""
        return self.method == "GET" and "limit=" in self.target and "limit=1&" not in f"{self.target}&"


@dataclass(frozen=True, slots=True)
class Answer:
    """A response of the proxy instead of the server's."""

    status: int
    headers: str = ""

    @property
    def text(self) -> bytes:
        """The whole response; its body is not JSON, as those of load balancers."""
        body = "upstream connect error"
        return (
            f"HTTP/1.1 {self.status} Faulty\r\n{self.headers}Content-Type: text/plain\r\n"
            f"Content-Length: {len(body)}\r\n\r\n{body}"
        ).encode()


Judge = Callable[[Asked], Answer | None]


@dataclass(slots=True, eq=False)
class _Connection:
    """One client's, and the server's for it."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    flows: asyncio.Event = field(default_factory=asyncio.Event)
    server: asyncio.StreamWriter | None = None
    newest: Asked | None = None

    def reset(self) -> None:
        for each in (self.writer, self.server):
            way: asyncio.WriteTransport | None = None if each is None else each.transport
            if way is None:
                continue  # not begun, or the peer hung up before it was greeted
            if (raw := way.get_extra_info("socket")) is not None:
                with suppress(OSError):
                    raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            way.abort()


class FaultyProxy:
    """``url`` is where it listens; ``asked`` is all that was asked."""

    def __init__(self, plane: BareControlPlane) -> None:
        self.asked: list[Asked] = []
        self.delay = 0.0
        self.judge: Judge = lambda _: None
        self._plane = plane
        self._tls, self._own_tls = plane.client_tls(), plane.server_tls()
        self._connections: set[_Connection] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._listener: asyncio.Server | None = None
        self._port = 0

    @property
    def url(self) -> str:
        """The proxy's URL."""
        return f"https://127.0.0.1:{self._port}"

    async def open(self) -> None:
        """Begins to listen, always at the same port."""
        self._listener = await asyncio.start_server(
            self._accept, "127.0.0.1", self._port, limit=_LONGEST_HEAD, reuse_address=True
        )
        self._port = self._listener.sockets[0].getsockname()[1]

    async def close(self) -> None:
        """Refuses connections, and resets those that there are."""
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        self.cut()
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def cut(self) -> None:
        """Resets every connection."""
        for each in tuple(self._connections):
            each.reset()

    def silence(self) -> None:
        """Nothing comes over the connections that there are any more, in either direction; they stay open."""
        for each in self._connections:
            each.flows.clear()

    async def has_refused(self, method: str, times: int, since: float) -> bool:
        """True if this many requests were refused after that instant."""
        found = [each for each in self.since(since) if each.method == method and each.status >= 400]
        return len(found) >= times

    def since(self, instant: float) -> list[Asked]:
        """Requests after ``instant`` (monotonic)."""
        return [each for each in self.asked if each.at >= instant]

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = _Connection(reader, writer)
        if self._listener is None:
            connection.reset()  # it came while this closed
            return
        self._connections.add(connection)  # now: the task may be cancelled before it begins
        task = asyncio.create_task(self._serve(connection))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, connection: _Connection) -> None:
        connection.flows.set()
        try:
            await connection.writer.start_tls(
                self._own_tls
            )  # not by the listener, which would own it until the peer is greeted
            await self._requests(connection)
        except (OSError, asyncio.IncompleteReadError):
            pass  # either end hung up
        finally:
            connection.reset()
            self._connections.discard(connection)

    async def _requests(self, connection: _Connection) -> None:
        backwards: asyncio.Task[None] | None = None
        try:
            while head := await _head(connection.reader):
                body = await connection.reader.readexactly(_length(head))
                await connection.flows.wait()
                method, target, _ = head.partition(b"\r\n")[0].decode().split(" ", 2)
                asked = connection.newest = Asked(method, target, time.monotonic())
                self.asked.append(asked)
                if self.delay:
                    await asyncio.sleep(self.delay)
                if (answer := self.judge(asked)) is not None:
                    asked.status = answer.status
                    connection.writer.write(answer.text)
                    continue
                if connection.server is None:
                    back, connection.server = await self._dial()
                    backwards = asyncio.create_task(_pump(connection, back))
                connection.server.write(head + body)
        finally:
            if backwards is not None:
                backwards.cancel()
                await asyncio.gather(backwards, return_exceptions=True)

    async def _dial(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        raw = self._plane.connection()
        try:
            await asyncio.get_running_loop().sock_connect(raw, ADDRESS)
            return await asyncio.open_connection(sock=raw, ssl=self._tls, server_hostname=ADDRESS[0])
        except BaseException:
            raw.close()
            raise


async def _head(reader: asyncio.StreamReader) -> bytes:
    """The head of the next request; empty if there is none any more."""
    try:
        return await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return b""


def _length(head: bytes) -> int:
    for line in head.split(b"\r\n")[1:]:
        name, _, value = line.partition(b":")
        if name.strip().lower() == b"content-length":
            return int(value)
    return 0


async def _pump(connection: _Connection, back: asyncio.StreamReader) -> None:
    """Everything that the server says; its end is the connection's."""
    try:
        while piece := await back.read(65536):
            await connection.flows.wait()
            if connection.newest is not None and not connection.newest.status and piece.startswith(b"HTTP/1.1 "):
                connection.newest.status = int(piece[9:12])
            connection.writer.write(piece)
            await connection.writer.drain()
    except OSError:
        pass  # hung up
    finally:
        connection.reset()


@asynccontextmanager
async def faulty_proxy(plane: BareControlPlane) -> AsyncIterator[FaultyProxy]:
    """One that listens and does nothing wrong yet."""
    proxy = FaultyProxy(plane)
    await proxy.open()
    try:
        yield proxy
    finally:
        await proxy.close()
