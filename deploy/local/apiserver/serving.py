"""Serving an application on several sockets with uvicorn, and stopping it without waiting for watches."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable

import uvicorn
from starlette.types import ASGIApp

from protocol.runtime.serving.prompt_server import PromptServer


class LocalApiServer(PromptServer):
    """A uvicorn server that ends its long-lived responses when it is asked to stop."""

    def __init__(self, app: ASGIApp, stop_streams: Callable[[], None], context: ssl.SSLContext | None) -> None:
        """Serves ``app``, with TLS if there is a ``context``; ``stop_streams`` must end every endless response."""
        super().__init__(
            uvicorn.Config(
                app,
                log_level="warning",
                access_log=False,
                http="h11",  # limits the head of a request; uvicorn would use httptools if that is installed
                lifespan="off",
                timeout_keep_alive=75,
                timeout_graceful_shutdown=2,
                ws="none",
                server_header=False,
                ssl_context_factory=None if context is None else lambda *_: context,
            )
        )
        self._stop_streams = stop_streams

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stops: first the streams, then the connections."""
        # Watches never end by themselves, and would hold up the end of their connections.
        self._stop_streams()
        await super().shutdown(sockets)


def listen(address: str) -> socket.socket:
    """A listening socket at ``HOST:PORT``. Raises ``ValueError`` for any other text, ``OSError`` if it is in use."""
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdecimal() or len(port) > 5:
        raise ValueError(f"expected HOST:PORT, got {address!r}")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio turns off Nagle's algorithm only on sockets that name their protocol.
    listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listening.bind((host.strip("[]"), int(port)))
    listening.listen(1024)
    listening.setblocking(False)
    return listening
