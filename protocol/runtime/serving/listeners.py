"""Listeners: several web applications in one process and one event loop, which stop together.

``limits`` bounds the resources that clients can use.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import ssl
from dataclasses import dataclass, field
from typing import Any, Final

import uvicorn
from starlette.types import ASGIApp

from protocol.runtime.program import StartError
from protocol.runtime.serving.bounded_protocol import BoundedProtocol
from protocol.runtime.serving.limits import Limits, Peers
from protocol.runtime.serving.prompt_server import PromptServer
from protocol.runtime.serving.tcp_listener import WAITING
from protocol.runtime.serving.tls_acceptor import TlsAcceptor
from protocol.runtime.tls_files import FollowedTls, TlsFilesError, following

LOG: Final = logging.getLogger("autoscale.serving")

_ACCEPTED_AT_ONCE: Final = 4
"""Connections accepted per iteration of the event loop: few, so that newer ones do not displace one whose request has
arrived.
"""

GRACE: Final = 1
"""Seconds for open requests to finish on shutdown."""


class ListenError(StartError):
    """Cannot listen on an address; the message says which and why."""


@dataclass(frozen=True, slots=True)
class Listener:
    """One application at one address, ``host:port``, or on a socket that already listens there.

    ``client`` is the common name in the certificate of the only allowed client; if empty, ``tls`` decides.
    """

    name: str
    app: ASGIApp
    address: str
    tls: FollowedTls[ssl.SSLContext] | None = None
    limits: Limits = field(default_factory=Limits)
    sock: socket.socket | None = None
    client: str = ""

    def server(self) -> Server:
        """Create its server, not yet started. Raises ``ListenError`` for an invalid address or certificate."""
        host, port = split_address(self.address)
        config = uvicorn.Config(
            self.app,
            host=host,
            port=port,
            http=BoundedProtocol,
            ws="none",
            log_config=None,
            access_log=False,
            lifespan="off",
            server_header=False,
            proxy_headers=False,
            timeout_graceful_shutdown=GRACE,
        )
        return Server(config, self, self._context())

    def _context(self) -> ssl.SSLContext | None:
        if self.tls is None:
            return None
        try:
            self.tls.value()
        except TlsFilesError as error:
            raise ListenError(f"invalid certificate of {self.name}: {error}") from None
        return following(self.tls, ssl.PROTOCOL_TLS_SERVER)


class Server(PromptServer):
    """A server with bounded connections."""

    def __init__(self, config: uvicorn.Config, listener: Listener, context: ssl.SSLContext | None) -> None:
        super().__init__(config)
        self.listener = listener
        self.context = context
        self._peers = Peers(listener.limits, listener.client)

    @property
    def sockets(self) -> list[socket.socket] | None:
        """The listener's own socket, if it has one."""
        return None if self.listener.sock is None else [self.listener.sock]

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start to listen, at the address or on the given socket. Raises ``ListenError``."""
        listener = self.listener
        try:
            server: Any = await self._listening(sockets[0] if sockets else None)
        except OSError as error:
            why = error.strerror or error
            raise ListenError(f"cannot listen on {listener.address} ({listener.name}): {why}") from None
        self.servers = [server]
        self.started = True
        details = {"listener": listener.name, "address": listener.address, "tls": self.context is not None}
        LOG.info("listening", extra=details)

    async def _listening(self, sock: socket.socket | None) -> asyncio.Server | TlsAcceptor:
        host, port = self.config.host, self.config.port
        if self.context is not None:
            limits, make = self.listener.limits, self._connection
            if sock is not None:
                return TlsAcceptor(sock, self.context, limits, make).start()
            return (await TlsAcceptor.at(host, port, context=self.context, limits=limits, make=make)).start()
        loop = asyncio.get_running_loop()
        if sock is not None:
            return _set_backlog(await loop.create_server(self._connection, sock=sock, backlog=_ACCEPTED_AT_ONCE))
        return _set_backlog(await loop.create_server(self._connection, host, port, backlog=_ACCEPTED_AT_ONCE))

    def _connection(self) -> BoundedProtocol:
        return BoundedProtocol(self._peers, config=self.config, server_state=self.server_state, app_state={})


def _set_backlog(server: asyncio.Server) -> asyncio.Server:
    """Make the kernel queue ``WAITING`` connections for a server with a small asyncio ``backlog``."""
    # In one iteration asyncio accepts up to ``backlog`` connections before it reads from any of them, so with a large
    # one, a burst of connections could displace one whose request has arrived.
    for listener in server.sockets:
        # asyncio's socket has no ``listen``, but a duplicate of the descriptor shares the kernel's queue.
        with socket.socket(fileno=os.dup(listener.fileno())) as duplicate:
            duplicate.listen(WAITING)
    return server


def split_address(address: str) -> tuple[str, int]:
    """Parse ``host:port`` or ``[v6]:port``. Raises ``ListenError``."""
    host, _, port = address.rpartition(":")
    if not (port.isascii() and port.isdigit() and len(port) <= 5 and int(port) <= 65535):
        raise ListenError(f"expected HOST:PORT, got {address!r}")
    return host.strip("[]") or "0.0.0.0", int(port)


async def serve(listeners: list[Listener], stop: asyncio.Event) -> None:
    """Serve all listeners until ``stop`` is set. Raises ``ListenError``."""
    servers = [listener.server() for listener in listeners]
    async with asyncio.TaskGroup() as tasks:
        running = [tasks.create_task(server.serve(server.sockets)) for server in servers]
        await stop.wait()
        for server in servers:
            server.end()
        await asyncio.gather(*running)
