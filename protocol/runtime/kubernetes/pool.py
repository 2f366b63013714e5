"""A pool of connections to one server, which stay open between requests."""

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

# A load balancer or NAT may silently drop an idle connection.
IDLE: Final = Seconds(20.0)
CONNECT: Final = Seconds(5.0)
"""Timeout of connecting, TLS handshake included: a watch has a long timeout, but must start sooner."""

# ``struct linger``: on, 0 seconds.
RESET_ON_CLOSE: Final = struct.pack("ii", 1, 0)

_PORTS: Final = {"https": 443, "http": 80}


class ConnectionPool:
    """At most ``limit`` connections to the server of ``credentials``. Close it when done (``async with``)."""

    def __init__(self, credentials: Credentials, limit: int) -> None:
        url = urlsplit(credentials.server)
        self._address = (url.hostname or "", url.port or _PORTS[url.scheme])
        tls = credentials.tls if isinstance(credentials.tls, ssl.SSLContext) else None
        self._tls = (tls or trusting()) if url.scheme == "https" else None
        self._slots = asyncio.Semaphore(limit)
        self._idle: list[tuple[float, HttpConnection]] = []
        self.host = url.netloc
        self.base = url.path.rstrip("/")

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close idle connections."""
        for _since, connection in self._idle:
            connection.close()
        self._idle.clear()

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[HttpConnection]:
        """A connection for one request, without a deadline. Raises like ``acquire``."""
        connection = await self.acquire(float("inf"))
        try:
            yield connection
        finally:
            self.release(connection)

    async def acquire(self, deadline: float) -> HttpConnection:
        """A connection for one request; ``release`` it afterwards. ``deadline`` is a time of the event loop.

        Raises ``OSError`` if the connection fails, and ``TimeoutError``.
        """
        if not self._slots.locked():
            await self._slots.acquire()  # returns immediately; a timeout would cost more than the rest
        else:
            async with asyncio.timeout_at(deadline):
                await self._slots.acquire()
        return self._idle_connection() or await self._opened(deadline)

    def release(self, connection: HttpConnection) -> None:
        """Return a connection after a request; it stays open if it is reusable."""
        if connection.is_reusable:
            self._idle.append((asyncio.get_running_loop().time(), connection))
        else:
            connection.close()
        self._slots.release()

    async def _opened(self, deadline: float) -> HttpConnection:
        """Open a connection, for which a slot is already taken; free the slot on failure."""
        try:
            async with asyncio.timeout_at(min(deadline, asyncio.get_running_loop().time() + CONNECT)):
                return await self._open()
        # Also on cancellation, otherwise the slot would stay taken forever.
        except BaseException:
            self._slots.release()
            raise

    def _idle_connection(self) -> HttpConnection | None:
        now = asyncio.get_running_loop().time()
        while self._idle:
            # Use the most recent one, so that surplus connections expire.
            since, connection = self._idle.pop()
            if connection.is_reusable and now - since < IDLE:
                return connection
            connection.close()
        return None

    async def _open(self) -> HttpConnection:
        host, port = self._address
        connection = await open_connection(host, port, self._tls)
        # Reset the connection on close: the kernel must not send requests that were abandoned, or that are unsent when
        # the process dies.
        connection.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)
        return connection
