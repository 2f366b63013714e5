"""A listening port of a runner pod that authenticates callers before it serves them.

Unauthenticated connections are limited in total and per IP, so they cannot lock out authenticated callers.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Final

from deploy.neonvm.access.callers import ANONYMOUS, ANYONE
from deploy.neonvm.access.keys import client_name
from deploy.neonvm.network.sockets import enable_keepalive
from protocol.runtime.serving.tcp_listener import ConnectionLimits, StreamPair, TcpListener, streams

ServeCaller = Callable[[str, asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
"""Serves the connection of the named caller; may raise ``OSError``."""
Tls = Callable[[], ssl.SSLContext]

MAX_UNAUTHENTICATED: Final = 128
PER_ADDRESS: Final = 8
HANDSHAKE_RATE: Final = 20.0
"""Per second and IP; a controller opens a connection for each request, a few per second."""
HANDSHAKE_BURST: Final = 40.0
"""Burst of handshakes per IP."""
MAX_AUTHENTICATED: Final = 64
"""Authenticated connections per name; a controller has one for each request and one for each migration."""
AUTHENTICATION_SECONDS: Final = 5.0
PROBE_SECONDS: Final = 10.0
_MAX_BUDGETS: Final = 1024
"""IPs with a handshake budget that is not full; above this number, those whose budget is full again are dropped."""


class AuthenticatedListener(TcpListener):
    """One listening port; ``serve`` is called with each caller's name. Without ``tls``, all callers are ``ANYONE``."""

    def __init__(self, listener: socket.socket, serve: ServeCaller, tls: Tls | None) -> None:
        super().__init__([listener], self._authorize, ConnectionLimits(PER_ADDRESS, MAX_UNAUTHENTICATED))
        self._serve_caller = serve
        self._tls = tls
        self._authenticated: Counter[str] = Counter()
        self._full_at: dict[str, float] = {}  # by IP: when its budget of handshakes is full again

    async def opened(self, connection: socket.socket, address: str) -> StreamPair:
        """See ``TcpListener``; the TLS handshake authenticates the caller."""
        # Close connections of a controller whose node is gone.
        enable_keepalive(connection)
        # Includes the wait for a handshake, so a flood from one IP times out.
        async with asyncio.timeout(AUTHENTICATION_SECONDS):
            if self._tls is None:
                return await streams(connection)
            # A handshake costs a millisecond of CPU.
            await self._wait_for_handshake(address)
            return await streams(connection, tls=self._tls())

    async def _wait_for_handshake(self, address: str) -> None:
        """Wait until the IP may start another handshake."""
        loop = asyncio.get_running_loop()
        while True:
            now = loop.time()
            wait = self._full_at.get(address, 0.0) - now - HANDSHAKE_BURST / HANDSHAKE_RATE
            if wait <= 0:
                break
            await asyncio.sleep(wait)
        if len(self._full_at) >= _MAX_BUDGETS:
            self._full_at = {other: until for other, until in self._full_at.items() if until > now}
        self._full_at[address] = max(self._full_at.get(address, now), now) + 1 / HANDSHAKE_RATE

    async def _authorize(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        caller = ANYONE if self._tls is None else client_name(writer.get_extra_info("ssl_object"))
        if caller == ANONYMOUS:
            # A probe: it stays among the unauthenticated connections.
            async with asyncio.timeout(PROBE_SECONDS):
                await self._serve_caller(caller, reader, writer)
            return
        if self._authenticated[caller] >= MAX_AUTHENTICATED:
            return
        self.keep()
        self._authenticated[caller] += 1
        try:
            await self._serve_caller(caller, reader, writer)
        finally:
            self._authenticated[caller] -= 1
