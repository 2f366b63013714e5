"""TCP listeners with bounded connections, each in its own task, which ends with the listener."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Final

StreamPair = tuple[asyncio.StreamReader, asyncio.StreamWriter]

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
"""Serves one connection; an ``OSError`` or a truncated stream just ends it."""

WAITING: Final = 100
"""Connections that the kernel queues until they are accepted."""

LARGEST: Final = 64 * 1024
_PAUSE: Final = 0.05
_SHUTDOWN_SECONDS: Final = 1.0


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """Maximum concurrent connections per address and in total. Beyond ``per_peer``, a new one displaces the oldest of
    its address; beyond ``total``, the oldest of the address with the most, so that no client can lock out a kubelet's
    probe.
    """

    per_peer: int
    total: int


class TcpListener:
    """Accepts connections on ``sockets``, which it owns. ``largest`` is the streams' limit. Close it when done."""

    def __init__(
        self,
        sockets: Sequence[socket.socket],
        serve: Serve,
        limits: ConnectionLimits | None = None,
        largest: int = LARGEST,
    ) -> None:
        self._sockets = sockets
        self._serve = serve
        self._limits = limits
        self._largest = largest
        self._displaceable: dict[asyncio.Task[None], str] = {}
        self._exempt: set[asyncio.Task[None]] = set()
        self._accepting = [asyncio.create_task(self._accept(listening)) for listening in sockets]

    @property
    def port(self) -> int:
        """The port that it listens on."""
        port: int = self._sockets[0].getsockname()[1]
        return port

    def keep(self) -> None:
        """Exempt the current task's connection from the limits."""
        task = asyncio.current_task()
        if task in self._displaceable:
            del self._displaceable[task]
            self._exempt.add(task)

    async def opened(self, connection: socket.socket, address: str) -> StreamPair:  # noqa: ARG002 - for subclasses
        """The streams of a connection from ``address``. Raises ``OSError`` to reject it."""
        return await streams(connection, self._largest)

    async def close(self) -> None:
        """Stop listening and end all connections."""
        ending = [*self._accepting, *self._displaceable, *self._exempt]
        for task in ending:
            task.cancel()
        await asyncio.gather(*ending, return_exceptions=True)
        for listening in self._sockets:
            listening.close()

    async def _accept(self, listening: socket.socket) -> None:
        listening.setblocking(False)
        loop, is_failing = asyncio.get_running_loop(), False
        while True:
            try:
                connection, (address, *_) = await loop.sock_accept(listening)
            except OSError as error:  # the client disconnected, or too many files are open
                # Report consecutive failures only once.
                if not is_failing:
                    loop.call_exception_handler({"message": "cannot accept a connection", "exception": error})
                is_failing = True
                await asyncio.sleep(_PAUSE)
                continue
            is_failing = False
            self._make_room(address)
            task = asyncio.create_task(self._received(connection, address))
            self._displaceable[task] = address
            task.add_done_callback(partial(self._forget, connection))
            # Accept one connection per iteration of the event loop, so that a request that has arrived is answered
            # before a burst of connections displaces it.
            await asyncio.sleep(0)

    def _make_room(self, address: str) -> None:
        if self._limits is None:
            return
        counts = Counter(self._displaceable.values())
        # An address at its limit displaces only its own connections.
        if counts[address] >= self._limits.per_peer:
            crowded = address
        elif counts.total() >= self._limits.total:
            crowded = counts.most_common(1)[0][0]
        else:
            return
        # Tasks are in order of arrival, so the first match is the oldest.
        oldest = next(task for task, peer in self._displaceable.items() if peer == crowded)
        # Remove it now, because its task ends later and would count until then.
        del self._displaceable[oldest]
        oldest.cancel()

    def _forget(self, connection: socket.socket, task: asyncio.Task[None]) -> None:
        self._displaceable.pop(task, None)
        self._exempt.discard(task)
        # A task that was cancelled before its first step has not closed the socket.
        if task.cancelled():
            connection.close()

    async def _received(self, connection: socket.socket, address: str) -> None:
        try:
            reader, writer = await self.opened(connection, address)
        except BaseException as error:
            connection.close()
            if isinstance(error, OSError):
                return  # rejected
            raise
        try:
            await self._serve_streams(reader, writer)
        except BaseException:
            # A peer that does not read would delay a graceful close.
            writer.transport.abort()
            raise

    async def _serve_streams(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await self._serve(reader, writer)
        # An exception group, because copying in both directions runs in a task group.
        except* (OSError, asyncio.IncompleteReadError):
            pass  # one side disconnected: close the other as well
        # Python 3.11 cannot abort a TLS transport that was closed twice.
        if not writer.is_closing():
            writer.close()
        # The connection counts until the peer has read the rest, because unsent bytes take memory.
        with suppress(OSError):
            await writer.wait_closed()


async def bound(host: str, port: int) -> list[socket.socket]:
    """Create sockets that listen on all addresses of ``host``. Raises ``OSError``."""
    addresses = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    sockets: list[socket.socket] = []
    try:
        for family, *_, address in dict.fromkeys(addresses):
            sockets.append(socket.create_server(address, family=family, backlog=WAITING))
    except OSError:
        for listening in sockets:
            listening.close()
        raise
    return sockets


async def streams(connection: socket.socket, largest: int = LARGEST, tls: ssl.SSLContext | None = None) -> StreamPair:
    """Create the streams of an accepted connection, after the handshake. Raises ``OSError``."""
    loop, reader = asyncio.get_running_loop(), asyncio.StreamReader(largest)
    # Like `asyncio.start_server`, which would accept connections before there is a slot for them.
    protocol = asyncio.StreamReaderProtocol(reader)
    options = {} if tls is None else {"ssl": tls, "ssl_shutdown_timeout": _SHUTDOWN_SECONDS}
    transport, _ = await loop.connect_accepted_socket(lambda: protocol, connection, **options)  # type: ignore[arg-type]
    return reader, asyncio.StreamWriter(transport, protocol, reader, loop)
