"""Limits connections before and during the TLS handshake.

An event loop's server reports a connection only after its handshake. Until then nothing counts it, and a client that
opens connections without sending anything would exhaust the file descriptors, which connections to the API server also
need.
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

MAX_HANDSHAKES: Final = 1024
MAX_PER_PEER: Final = 64
"""A handshake takes milliseconds: even if all agents connect at once, from one address, all succeed within seconds."""

DISPLACED_AFTER: Final = Seconds(1.0)
"""Without a free slot, a handshake older than this is displaced; otherwise one of the peer with the most."""

_PAUSE: Final = Seconds(0.1)
"""Delay after a connection could not be accepted, for example for lack of file descriptors."""

ProtocolFactory = Callable[[], asyncio.Protocol]
"""Creates the protocol of a new connection."""


@dataclass(eq=False, slots=True)
class TlsAcceptor:
    """Accepts connections on ``listening``, and creates their protocol after the handshake. Close it when done."""

    listening: socket.socket
    context: ssl.SSLContext
    limits: Limits
    make: ProtocolFactory
    _pending: dict[asyncio.Task[None], tuple[str, float]] = field(default_factory=dict)
    _of_peer: Counter[str] = field(default_factory=Counter)
    _accepting: asyncio.Task[None] | None = None

    @classmethod
    async def at(
        cls, host: str, port: int, *, context: ssl.SSLContext, limits: Limits, make: ProtocolFactory
    ) -> TlsAcceptor:
        """Listen at an address. Raises ``OSError``."""
        addresses = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
        family, *_, address = addresses[0]
        return cls(socket.create_server(address[:2], family=family, backlog=MAX_HANDSHAKES), context, limits, make)

    def start(self) -> TlsAcceptor:
        """Start to accept connections."""
        self.listening.setblocking(False)
        self._accepting = asyncio.create_task(self._accept())
        return self

    def close(self) -> None:
        """Stop listening and abort pending handshakes."""
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
                LOG.warning("cannot accept a connection", extra={"error": error.strerror or str(error)})
                # Without file descriptors, ``accept`` keeps failing immediately.
                await asyncio.sleep(_PAUSE)
                continue
            peer = str(address[0])
            if not self._find_slot(peer):
                connection.close()
                continue
            # Count it from here to ``_ended``: it is not counted elsewhere during the handshake.
            self._of_peer[peer] += 1
            task = asyncio.create_task(self._shake_hands(connection))
            self._pending[task] = peer, loop.time()
            task.add_done_callback(partial(self._ended, connection))

    def _find_slot(self, peer: str) -> bool:
        if self._of_peer[peer] >= MAX_PER_PEER:
            return False
        if len(self._pending) < MAX_HANDSHAKES:
            return True
        # A dict keeps the order in which the handshakes started.
        oldest, (_, since) = next(iter(self._pending.items()))
        if asyncio.get_running_loop().time() - since < DISPLACED_AFTER:
            # All are young: either a burst, whose handshakes end soon, or a few peers that keep connecting.
            crowded, count = self._of_peer.most_common(1)[0]
            if count <= self._of_peer[peer] + 1:
                return False
            oldest = next(task for task, (address, _) in self._pending.items() if address == crowded)
        # Free the slot now: more connections are accepted before the task ends, and must displace others.
        self._free(oldest)
        oldest.cancel()
        return True

    def _free(self, task: asyncio.Task[None]) -> None:
        """Free the slot of a handshake."""
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
                # The same limit for a peer that does not respond to the TLS shutdown.
                ssl_shutdown_timeout=self.limits.handshake,
            )
        except OSError:  # the client disconnected, or the handshake failed
            connection.close()

    def _ended(self, connection: socket.socket, task: asyncio.Task[None]) -> None:
        """Clean up after a handshake, which may have been cancelled before it started."""
        if task in self._pending:
            self._free(task)
        # If the task was cancelled before its first step, nothing else closes the socket.
        if task.cancelled():
            connection.close()
