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

from deploy.neonvm.access.callers import ANYONE, NOBODY
from deploy.neonvm.access.keys import client_name
from deploy.neonvm.network.sockets import notice_loss
from protocol.runtime.serving.tcp_listener import ConnectionLimits, StreamPair, TcpListener, streams

ServeCaller = Callable[[str, asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
"""Serves the connection of the named caller; may raise ``OSError``."""
Tls = Callable[[], ssl.SSLContext]

UNPROVEN: Final = 128
PER_ADDRESS: Final = 8
HANDSHAKES: Final = 20.0
"""Per second and IP; a controller opens a connection for each request, a few per second."""
AT_ONCE: Final = 40.0
"""Burst of handshakes per IP."""
PROVEN: Final = 64
"""Authenticated connections per name; a controller has one for each request and one for each migration."""
PROOF_SECONDS: Final = 5.0
PROBE_SECONDS: Final = 10.0
_REMEMBERED: Final = 1024


class Door(TcpListener):
    """One listening port. Without ``tls``, all callers are ``ANYONE``."""

    def __init__(self, listener: socket.socket, serve: ServeCaller, tls: Tls | None) -> None:
        super().__init__([listener], self._converse, ConnectionLimits(PER_ADDRESS, UNPROVEN))
        self._serve_caller = serve
        self._tls = tls
        self._proven: Counter[str] = Counter()
        self._spent_until: dict[str, float] = {}  # by IP: when its budget of handshakes is full again

    async def opened(self, connection: socket.socket, address: str) -> StreamPair:
        """See ``TcpListener``; the TLS handshake authenticates the caller."""
        # Close connections of a controller whose node is gone.
        notice_loss(connection)
        # Includes the wait for a turn, so a flood from one IP times out.
        async with asyncio.timeout(PROOF_SECONDS):
            if self._tls is None:
                return await streams(connection)
            # A handshake costs a millisecond of CPU.
            await self._turn(address)
            return await streams(connection, tls=self._tls())

    async def _turn(self, address: str) -> None:
        """Wait until the IP may start another handshake."""
        loop = asyncio.get_running_loop()
        while True:
            now = loop.time()
            wait = self._spent_until.get(address, 0.0) - now - AT_ONCE / HANDSHAKES
            if wait <= 0:
                break
            await asyncio.sleep(wait)
        # Drop IPs whose budget is full again.
        if len(self._spent_until) >= _REMEMBERED:
            self._spent_until = {other: until for other, until in self._spent_until.items() if until > now}
        self._spent_until[address] = max(self._spent_until.get(address, now), now) + 1 / HANDSHAKES

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        who = ANYONE if self._tls is None else client_name(writer.get_extra_info("ssl_object"))
        if who == NOBODY:
            # A probe: it stays among the unauthenticated connections.
            async with asyncio.timeout(PROBE_SECONDS):
                await self._serve_caller(who, reader, writer)
            return
        if self._proven[who] >= PROVEN:
            return
        self.keep()
        self._proven[who] += 1
        try:
            await self._serve_caller(who, reader, writer)
        finally:
            self._proven[who] -= 1
