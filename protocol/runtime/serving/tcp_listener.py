"""TCP listeners: bounded connections, each in a task of its own, which end with their listener."""

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
"""Speaks with one peer until either side has enough; an ``OSError`` or a cut stream just ends the connection."""

WAITING: Final = 100
"""How many connections the kernel queues until they are accepted."""

LARGEST: Final = 64 * 1024
_PAUSE: Final = 0.05
_SHUTDOWN_SECONDS: Final = 1.0


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """Connections at a time, of one address and in all. Beyond ``per_peer`` a new one displaces the oldest of its
    address, beyond ``most`` the oldest of the address with the most: strangers cannot keep a kubelet's probe out.
    """

    per_peer: int
    most: int


class TcpListener:
    """Accepts at ``sockets``, which are its own. ``largest`` is the limit of its streams. Close it when done."""

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
        self._kept: set[asyncio.Task[None]] = set()
        self._accepting = [asyncio.create_task(self._accept(listening)) for listening in sockets]

    @property
    def port(self) -> int:
        """The port that it listens on."""
        port: int = self._sockets[0].getsockname()[1]
        return port

    def keep(self) -> None:
        """The current task's connection is not displaced any more, and does not count."""
        task = asyncio.current_task()
        if task in self._displaceable:
            del self._displaceable[task]
            self._kept.add(task)

    async def opened(self, connection: socket.socket, address: str) -> StreamPair:  # noqa: ARG002 - for others
        """The streams of a connection from ``address``. Raises ``OSError`` to refuse it."""
        return await streams(connection, self._largest)

    async def close(self) -> None:
        """Stop listening and ends all connections."""
        ending = [*self._accepting, *self._displaceable, *self._kept]
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
            except OSError as error:  # the caller has hung up, or there are too many files open
                # Once in a row: it is tried again and again.
                if not is_failing:
                    loop.call_exception_handler({"message": "a connection cannot be accepted", "exception": error})
                is_failing = True
                await asyncio.sleep(_PAUSE)
                continue
            is_failing = False
            self._make_room(address)
            task = asyncio.create_task(self._received(connection, address))
            self._displaceable[task] = address
            task.add_done_callback(partial(self._forget, connection))
            # With one connection in each turn of the event loop, a request that has arrived is answered before a crowd
            # displaces it.
            await asyncio.sleep(0)

    def _make_room(self, address: str) -> None:
        if self._limits is None:
            return
        counts = Counter(self._displaceable.values())
        # An address at its limit displaces only a connection of its own.
        if counts[address] >= self._limits.per_peer:
            crowded = address
        elif counts.total() >= self._limits.most:
            crowded = counts.most_common(1)[0][0]
        else:
            return
        # They are in order of arrival, so the first match is the oldest.
        oldest = next(task for task, peer in self._displaceable.items() if peer == crowded)
        # Removed here, since its task ends later and would count until then.
        del self._displaceable[oldest]
        oldest.cancel()

    def _forget(self, connection: socket.socket, task: asyncio.Task[None]) -> None:
        self._displaceable.pop(task, None)
        self._kept.discard(task)
        # A task that was cancelled before its first step has closed nothing.
        if task.cancelled():
            connection.close()

    async def _received(self, connection: socket.socket, address: str) -> None:
        try:
            reader, writer = await self.opened(connection, address)
        except BaseException as error:
            connection.close()
            if isinstance(error, OSError):
                return  # it was not let in
            raise
        try:
            await self._conversed(reader, writer)
        except BaseException:
            # A peer that does not read would delay a graceful end.
            writer.transport.abort()
            raise

    async def _conversed(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await self._serve(reader, writer)
        # A group, because copying both ways runs in a task group.
        except* (OSError, asyncio.IncompleteReadError):
            pass  # one end went away: closing the other is how TCP says so
        # Python 3.11 cannot abort a TLS transport that was closed twice.
        if not writer.is_closing():
            writer.close()
        # Until the peer has read the rest, the connection keeps its place: unsent bytes are memory.
        with suppress(OSError):
            await writer.wait_closed()


async def bound(host: str, port: int) -> list[socket.socket]:
    """Sockets that listen at all addresses of ``host``. Raises ``OSError``."""
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
    """The streams of an accepted connection, after the handshake. Raises ``OSError``."""
    loop, reader = asyncio.get_running_loop(), asyncio.StreamReader(largest)
    # What `asyncio.start_server` does, but that would accept callers before there is room for them.
    protocol = asyncio.StreamReaderProtocol(reader)
    options = {} if tls is None else {"ssl": tls, "ssl_shutdown_timeout": _SHUTDOWN_SECONDS}
    transport, _ = await loop.connect_accepted_socket(lambda: protocol, connection, **options)  # type: ignore[arg-type]
    return reader, asyncio.StreamWriter(transport, protocol, reader, loop)
