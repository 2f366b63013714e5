"""Connections to one server, kept open between requests. No more than ``most`` are open at once."""

from __future__ import annotations

import asyncio
import socket
import ssl
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final, Self
from urllib.parse import urlsplit

from protocol.runtime.credentials import Credentials
from protocol.runtime.http_connection import HttpConnection
from protocol.runtime.keep_alive import open_connection
from protocol.runtime.trust import trusting
from protocol.units import Seconds

# A load balancer or NAT in between may drop an idle connection silently.
IDLE: Final = Seconds(20.0)
CONNECT: Final = Seconds(5.0)
"""For connecting and the TLS handshake: a watch has a long time-out, but must not take that long to begin."""

# ``struct linger``: on, 0 seconds.
RESET_ON_CLOSE: Final = struct.pack("ii", 1, 0)

_PORTS: Final = {"https": 443, "http": 80}


class ConnectionPool:
    """Connections to the server of ``credentials``. Close it when done (``async with``)."""

    def __init__(self, credentials: Credentials, most: int) -> None:
        url = urlsplit(credentials.server)
        self._address = (url.hostname or "", url.port or _PORTS[url.scheme])
        tls = credentials.tls if isinstance(credentials.tls, ssl.SSLContext) else None
        self._tls = (tls or trusting()) if url.scheme == "https" else None
        self._places = asyncio.Semaphore(most)
        self._idle: list[tuple[float, HttpConnection]] = []
        self.host = url.netloc
        self.base = url.path.rstrip("/")

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections that are idle; one that is lent is closed when it is given back."""
        for _since, connection in self._idle:
            connection.close()
        self._idle.clear()

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[HttpConnection]:
        """A connection for one request, without a deadline. Raises as ``lend``."""
        connection = await self.lend(float("inf"))
        try:
            yield connection
        finally:
            self.take_back(connection)

    async def lend(self, deadline: float) -> HttpConnection:
        """A connection for one request; give it back. ``deadline`` is an instant of the event loop.

        Raises ``OSError`` if none can be made, and ``TimeoutError``.
        """
        if not self._places.locked():
            await self._places.acquire()  # returns at once: a timeout around it would cost more than the rest
        else:
            async with asyncio.timeout_at(deadline):
                await self._places.acquire()
        return self._kept() or await self._opened(deadline)

    def take_back(self, connection: HttpConnection) -> None:
        """End a request; the connection is kept if it can be used again."""
        if connection.is_reusable:
            self._idle.append((asyncio.get_running_loop().time(), connection))
        else:
            connection.close()
        self._places.release()

    async def _opened(self, deadline: float) -> HttpConnection:
        """Open a connection in a place that is already taken; on failure the place is free again."""
        try:
            async with asyncio.timeout_at(min(deadline, asyncio.get_running_loop().time() + CONNECT)):
                return await self._open()
        # Cancellation, too: otherwise the place would never be free again.
        except BaseException:
            self._places.release()
            raise

    def _kept(self) -> HttpConnection | None:
        now = asyncio.get_running_loop().time()
        while self._idle:
            # The one used last, so that surplus connections expire.
            since, connection = self._idle.pop()
            if connection.is_reusable and now - since < IDLE:
                return connection
            connection.close()
        return None

    async def _open(self) -> HttpConnection:
        host, port = self._address
        connection = await open_connection(host, port, self._tls)
        # Closing resets the connection: the kernel must not send requests that were given up, or are still unsent when
        # the process dies.
        connection.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)
        return connection
