"""Loopback ports of the machine that lead into a network: people and their tools stay outside of the namespaces.

The listening socket is the machine's; each connection is continued by a socket made inside (``Dial``). A connection
belongs to the forwarder, which ends it when it closes.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from typing import Final

Dial = Callable[[str, int], Awaitable[socket.socket]]
"""Connects to a host and port inside the network; raises ``OSError``."""

_CHUNK: Final = 64 * 1024


class Forwarder:
    """Any number of forwarded ports; the same target always has the same port."""

    def __init__(self, dial: Dial) -> None:
        self._dial = dial
        self._servers: dict[tuple[str, int], asyncio.Server] = {}
        self._connections: set[asyncio.Task[None]] = set()

    async def open(self, target: str, port: int) -> int:
        """The loopback port that leads to ``target:port``."""
        if (target, port) not in self._servers:

            def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                connection = asyncio.create_task(self._serve(target, port, reader, writer))
                self._connections.add(connection)
                connection.add_done_callback(self._connections.discard)

            self._servers[target, port] = await asyncio.start_server(accept, "127.0.0.1", 0)
        bound: int = self._servers[target, port].sockets[0].getsockname()[1]
        return bound

    async def close(self) -> None:
        """Ends all connections and gives the ports back."""
        servers, self._servers = self._servers, {}
        for server in servers.values():
            server.close()
        ending = list(self._connections)
        for connection in ending:
            connection.cancel()
        await asyncio.gather(*ending, return_exceptions=True)

    async def _serve(self, target: str, port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            inner_reader, inner_writer = await asyncio.open_connection(sock=await self._dial(target, port))
            try:
                async with asyncio.TaskGroup() as both:
                    both.create_task(_copy(reader, inner_writer))
                    both.create_task(_copy(inner_reader, writer))
            finally:
                inner_writer.close()
        except* OSError:
            pass  # one end went away: closing the other is how TCP says so
        finally:
            writer.close()


async def _copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    while part := await source.read(_CHUNK):
        target.write(part)
        await target.drain()
    if target.can_write_eof():
        target.write_eof()
