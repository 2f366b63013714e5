"""TCP servers whose connections have an owner: closing the server ends every connection and waits for it."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
"""Speaks with one peer until either side has enough; an ``OSError`` or a cut stream just ends the connection."""


class Serving:
    """A server on one listening socket."""

    def __init__(self, server: asyncio.Server, connections: set[asyncio.Task[None]]) -> None:
        self._server = server
        self._connections = connections

    @classmethod
    async def on(cls, listener: socket.socket, serve: Serve) -> Serving:
        """Begins to accept; the socket belongs to the server from here on."""
        connections: set[asyncio.Task[None]] = set()

        def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            connection = asyncio.create_task(_converse(serve, reader, writer))
            # The event loop holds tasks weakly, and `close` has to find them.
            connections.add(connection)
            connection.add_done_callback(connections.discard)

        return cls(await asyncio.start_server(accept, sock=listener), connections)

    @property
    def port(self) -> int:
        """The port that it listens on."""
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    async def close(self) -> None:
        """Stops listening and ends all connections."""
        self._server.close()
        ending = list(self._connections)
        for connection in ending:
            connection.cancel()
        await asyncio.gather(*ending, return_exceptions=True)


async def _converse(serve: Serve, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        await serve(reader, writer)
    # A group, because copying both ways runs in a task group.
    except* (OSError, asyncio.IncompleteReadError):
        pass  # one end went away: closing the other is how TCP says so
    finally:
        writer.close()
