"""A port of a runner pod: it finds out who calls before it serves, and keeps places for those who have proven it.

Callers that have not shown their certificate yet are bounded, in total and for each address, so callers that say
nothing lock nobody out.
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
"""Speaks with the caller of this name until either side has enough; an ``OSError`` or a cut stream ends that too."""
Tls = Callable[[], ssl.SSLContext]

UNPROVEN: Final = 128
PER_ADDRESS: Final = 8
HANDSHAKES: Final = 20.0
"""Per second; a controller makes a connection for each request to a pod, a few a second."""
AT_ONCE: Final = 40.0
PROVEN: Final = 64
"""Connections of one name: a controller has one for each request and one for each move."""
PROOF_SECONDS: Final = 5.0
PROBE_SECONDS: Final = 10.0
_REMEMBERED: Final = 1024


class Door(TcpListener):
    """One listening port. Without ``tls`` everyone is served as ``ANYONE``. Close it when done."""

    def __init__(self, listener: socket.socket, serve: ServeCaller, tls: Tls | None) -> None:
        super().__init__([listener], self._converse, ConnectionLimits(PER_ADDRESS, UNPROVEN))
        self._serve_caller = serve
        self._tls = tls
        self._proven: Counter[str] = Counter()
        self._spent_until: dict[str, float] = {}  # by address: when its handshakes will have been paid for

    async def opened(self, connection: socket.socket, address: str) -> StreamPair:
        """See ``TcpListener``; the handshake proves who calls."""
        # A controller whose node is gone gives its connections back.
        notice_loss(connection)
        # The wait for a turn counts as well, so a flood from one address times out by itself.
        async with asyncio.timeout(PROOF_SECONDS):
            if self._tls is None:
                return await streams(connection)
            # A handshake costs a millisecond of CPU, so each address may begin only `HANDSHAKES` a second.
            await self._turn(address)
            return await streams(connection, tls=self._tls())

    async def _turn(self, address: str) -> None:
        """Returns once the address may begin another handshake."""
        loop = asyncio.get_running_loop()
        while True:
            now = loop.time()
            wait = self._spent_until.get(address, 0.0) - now - AT_ONCE / HANDSHAKES
            if wait <= 0:
                break
            await asyncio.sleep(wait)
        # There can be many addresses; those whose handshakes are paid for need not be remembered.
        if len(self._spent_until) >= _REMEMBERED:
            self._spent_until = {other: until for other, until in self._spent_until.items() if until > now}
        self._spent_until[address] = max(self._spent_until.get(address, now), now) + 1 / HANDSHAKES

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        who = ANYONE if self._tls is None else client_name(writer.get_extra_info("ssl_object"))
        if who == NOBODY:
            # A caller without a certificate is a probe: it is served once, and keeps its place among the unproven.
            async with asyncio.timeout(PROBE_SECONDS):
                await self._serve_caller(who, reader, writer)
            return
        # Beyond `PROVEN`, a connection of the same name is closed without an answer.
        if self._proven[who] >= PROVEN:
            return
        self.keep()
        self._proven[who] += 1
        try:
            await self._serve_caller(who, reader, writer)
        finally:
            self._proven[who] -= 1
