"""Connections before and during the TLS handshake, and the limit on their number.

An event loop's server reports a connection only after its handshake: until then nothing counts it, and a client
that opens connections and sends nothing uses up the process's file descriptors, which the API server's connections need
as well.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from protocol.runtime.serving.limits import Limits
from protocol.units import Seconds

LOG: Final = logging.getLogger("autoscale.serving")

MOST: Final = 1024
MOST_OF_PEER: Final = 64
"""A handshake takes milliseconds: agents that come all at once, from one address too, are through within seconds."""

DISPLACED_AFTER: Final = Seconds(1.0)
"""If there is no place left, one that has had this long gives its place away; before, one of the peer with the most."""

_PAUSE: Final = Seconds(0.1)
"""After a connection could not be accepted, as without files left."""

Make = Callable[[], asyncio.Protocol]
"""Makes what speaks over a new connection."""


@dataclass(eq=False, slots=True)
class TlsAcceptor:
    """Accepts at ``listening``, and makes connections of those whose handshake succeeds. Close it when done."""

    listening: socket.socket
    context: ssl.SSLContext
    limits: Limits
    make: Make
    _pending: dict[asyncio.Task[None], tuple[str, float]] = field(default_factory=dict)
    _of_peer: Counter[str] = field(default_factory=Counter)
    _accepting: asyncio.Task[None] | None = None

    @classmethod
    async def at(cls, host: str, port: int, *, context: ssl.SSLContext, limits: Limits, make: Make) -> TlsAcceptor:
        """Listen at an address. Raises ``OSError``."""
        addresses = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
        family, *_, address = addresses[0]
        return cls(socket.create_server(address[:2], family=family, backlog=MOST), context, limits, make)

    def start(self) -> TlsAcceptor:
        """Begin to accept."""
        self.listening.setblocking(False)
        self._accepting = asyncio.create_task(self._accept())
        return self

    def close(self) -> None:
        """End listening, and what has not become a connection yet."""
        for task in (self._accepting, *self._pending):
            if task is not None:
                task.cancel()
        self.listening.close()

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, address = await loop.sock_accept(self.listening)
            except OSError as error:
                LOG.warning("a connection could not be accepted", extra={"error": error.strerror or str(error)})
                # Without files left ``accept`` fails at once, again and again.
                await asyncio.sleep(_PAUSE)
                continue
            peer = str(address[0])
            if not self._has_place(peer):
                connection.close()
                continue
            # Counted from here to ``_ended``: the handshake itself is reported to nobody.
            self._of_peer[peer] += 1
            task = asyncio.create_task(self._shake_hands(connection))
            self._pending[task] = peer, loop.time()
            task.add_done_callback(partial(self._ended, connection))

    def _has_place(self, peer: str) -> bool:
        if self._of_peer[peer] >= MOST_OF_PEER:
            return False
        if len(self._pending) < MOST:
            return True
        # A dict keeps the order in which the handshakes began.
        oldest, (_, since) = next(iter(self._pending.items()))
        if asyncio.get_running_loop().time() - since < DISPLACED_AFTER:
            # All of them are young: a burst, whose handshakes end within moments, or a few peers that never stop.
            crowded, count = self._of_peer.most_common(1)[0]
            if count <= self._of_peer[peer] + 1:
                return False
            oldest = next(task for task, (address, _) in self._pending.items() if address == crowded)
        # Waiting connections are accepted before the task ends: the next must displace another.
        self._free(oldest)
        oldest.cancel()
        return True

    def _free(self, task: asyncio.Task[None]) -> None:
        """Give back the place of a handshake."""
        peer, _ = self._pending.pop(task)
        self._of_peer[peer] -= 1
        if not self._of_peer[peer]:
            del self._of_peer[peer]

    async def _shake_hands(self, connection: socket.socket) -> None:
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                self.make,
                connection,
                ssl=self.context,
                ssl_handshake_timeout=self.limits.handshake,
                # A peer that does not answer the closing of TLS keeps its file as long.
                ssl_shutdown_timeout=self.limits.handshake,
            )
        except OSError:  # of the client, or of TLS: nobody was let in
            connection.close()

    def _ended(self, connection: socket.socket, task: asyncio.Task[None]) -> None:
        """The handshake is over; one that was cancelled may not even have begun."""
        if task in self._pending:
            self._free(task)
        # The task may have been cancelled before its first step: then nothing else closes the socket.
        if task.cancelled():
            connection.close()
