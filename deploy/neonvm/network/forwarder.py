"""Loopback ports of the machine that lead into a network, so that tools need not enter its namespaces.

The listening socket is the machine's; each connection is continued by a socket made inside (``Dial``).
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Hashable
from typing import Final

from deploy.neonvm.network.sockets import listening, tcp_socket
from protocol.runtime.serving.tcp_listener import TcpListener

Dial = Callable[[str, int], Awaitable[socket.socket]]
"""Connects to a host and port inside the network; raises ``OSError``."""

_CHUNK: Final = 64 * 1024


class Forwarder:
    """Any number of forwarded ports; the same target, or key, always has the same port."""

    def __init__(self, dial: Dial) -> None:
        self._dial = dial
        self._open: dict[Hashable, TcpListener] = {}

    async def open(self, target: str, port: int) -> int:
        """The loopback port that leads to ``target:port``."""
        return await self.lead((target, port), lambda: self._dial(target, port))

    async def lead(self, key: Hashable, dial: Callable[[], Awaitable[socket.socket]]) -> int:
        """The loopback port of ``key``, of which each connection is continued by what ``dial`` returns for it."""
        if key not in self._open:

            async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                await _join(reader, writer, await dial())

            self._open[key] = TcpListener([listening(tcp_socket(), "127.0.0.1", 0)], serve)
        return self._open[key].port

    async def close(self) -> None:
        """Ends all connections and gives the ports back."""
        # A target that is opened while these close gets a new port.
        closing, self._open = self._open, {}
        for serving in closing.values():
            await serving.close()


async def _join(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, inside: socket.socket) -> None:
    """Copies both ways until both ends have finished sending."""
    inner_reader, inner_writer = await asyncio.open_connection(sock=inside)
    try:
        async with asyncio.TaskGroup() as both:
            both.create_task(_copy(reader, inner_writer))
            both.create_task(_copy(inner_reader, writer))
    finally:
        inner_writer.close()


async def _copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    while part := await source.read(_CHUNK):
        target.write(part)
        await target.drain()
    if target.can_write_eof():
        # Half-closed: the other direction may still have something to say.
        target.write_eof()
