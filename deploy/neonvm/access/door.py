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
from protocol.runtime.explaining.displacing import displaced

Serve = Callable[[str, asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
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
_SHUTDOWN_SECONDS: Final = 1.0
_PAUSE: Final = 0.05
_REMEMBERED: Final = 1024
_ALIVE: Final = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 10),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
)
"""A controller whose node is gone gives its connections back after 25 seconds."""


class Door:
    """One listening port. Without ``tls`` everyone is served as ``ANYONE``. Close it when done."""

    def __init__(self, listener: socket.socket, serve: Serve, tls: Tls | None) -> None:
        listener.setblocking(False)
        self._listener = listener
        self._serve = serve
        self._tls = tls
        self._unproven: dict[asyncio.Task[None], str] = {}
        self._proven: dict[asyncio.Task[None], str] = {}
        self._spent_until: dict[str, float] = {}  # by address: when its handshakes will have been paid for
        self._accepting = asyncio.create_task(self._accept())

    @property
    def port(self) -> int:
        """The port that it listens on."""
        port: int = self._listener.getsockname()[1]
        return port

    async def close(self) -> None:
        """Stops listening and ends all connections."""
        ending = [self._accepting, *self._unproven, *self._proven]
        for task in ending:
            task.cancel()
        await asyncio.gather(*ending, return_exceptions=True)
        self._listener.close()

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, (address, *_) = await loop.sock_accept(self._listener)
            except OSError:
                await asyncio.sleep(_PAUSE)  # the caller has hung up, or there are too many files open
                continue
            self._make_room(address)
            task = asyncio.create_task(self._received(connection, address))
            self._unproven[task] = address
            task.add_done_callback(self._forget)
            await asyncio.sleep(0)  # lets it begin before it can be cancelled, so that it closes its socket

    def _make_room(self, address: str) -> None:
        # A new caller displaces the oldest of its own address, or else of the address with the most callers.
        oldest = displaced(self._unproven, address, PER_ADDRESS, UNPROVEN)
        if oldest is not None:
            del self._unproven[oldest]
            oldest.cancel()

    def _forget(self, task: asyncio.Task[None]) -> None:
        self._unproven.pop(task, None)
        self._proven.pop(task, None)

    async def _received(self, connection: socket.socket, address: str) -> None:
        try:
            reader, writer = await self._opened(connection, address)
        except (OSError, TimeoutError):
            return
        try:
            await self._converse(ANYONE if self._tls is None else client_name(_tls_of(writer)), reader, writer)
        except* (OSError, TimeoutError, asyncio.IncompleteReadError):
            pass  # one end went away: closing the other is how TCP says so
        finally:
            writer.close()

    async def _opened(
        self, connection: socket.socket, address: str
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        try:
            for option in _ALIVE:
                connection.setsockopt(*option)
            # The wait for a turn counts as well, so a flood from one address times out by itself.
            async with asyncio.timeout(PROOF_SECONDS):
                if self._tls is not None:
                    # A handshake costs a millisecond of CPU, so each address may begin only `HANDSHAKES` a second.
                    await self._turn(address)
                return await _streams(connection, self._tls)
        except BaseException:
            connection.close()
            raise

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

    async def _converse(self, who: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if who == NOBODY:
            # A caller without a certificate is a probe: it is served once, and keeps its place among the unproven.
            async with asyncio.timeout(PROBE_SECONDS):
                await self._serve(who, reader, writer)
            return
        task = asyncio.current_task()
        # Beyond `PROVEN`, a connection of the same name is closed without an answer.
        if task is not None and Counter(self._proven.values())[who] < PROVEN:
            self._unproven.pop(task, None)
            self._proven[task] = who
            await self._serve(who, reader, writer)


def _tls_of(writer: asyncio.StreamWriter) -> ssl.SSLObject | None:
    tls_object: ssl.SSLObject | None = writer.get_extra_info("ssl_object")
    return tls_object


async def _streams(connection: socket.socket, tls: Tls | None) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """The streams of an accepted connection, after the handshake. Raises ``OSError``."""
    loop, reader = asyncio.get_running_loop(), asyncio.StreamReader()
    # What `asyncio.start_server` does, but that would accept callers before there is room for them.
    protocol = asyncio.StreamReaderProtocol(reader)
    options = {} if tls is None else {"ssl": tls(), "ssl_shutdown_timeout": _SHUTDOWN_SECONDS}
    transport, _ = await loop.connect_accepted_socket(lambda: protocol, connection, **options)  # type: ignore[arg-type]
    return reader, asyncio.StreamWriter(transport, protocol, reader, loop)
