"""Listeners: several web applications in one process and one event loop, ended together.

Rules that hold here:

- The process's signals belong to ``__main__``; a server ends when it is told.
- Certificates are read again when their files change; open connections keep theirs.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Never

import uvicorn
from fastapi import FastAPI

from protocol.runtime.clock import Clock
from protocol.units import Seconds
from scheduler_plugin.telemetry import LOG

GRACE: Final = 1
"""Seconds that open requests get at the end."""

CERTIFICATE_INTERVAL: Final = Seconds(10.0)


class ListenError(Exception):
    """An address cannot be listened on; the message says which and why."""


@dataclass(frozen=True, slots=True)
class Tls:
    """A certificate with its key, and the authority of client certificates (None: clients need none)."""

    certificate: Path
    key: Path
    client_authority: Path | None = None

    def stamp(self) -> tuple[int, ...]:
        """Changes whenever one of the files does."""
        return tuple(path.stat().st_mtime_ns for path in (self.certificate, self.key))


@dataclass(frozen=True, slots=True)
class Listener:
    """One application at one address, ``host:port``."""

    name: str
    app: FastAPI
    address: str
    tls: Tls | None = None

    def server(self) -> Server:
        """A server for it, not yet started. Raises ``ListenError`` for an unusable address."""
        host, port = split_address(self.address)
        tls = self.tls
        config = uvicorn.Config(
            self.app,
            host=host,
            port=port,
            log_config=None,
            access_log=False,
            lifespan="off",
            server_header=False,
            timeout_graceful_shutdown=GRACE,
            ssl_certfile=None if tls is None else tls.certificate,
            ssl_keyfile=None if tls is None else str(tls.key),
            ssl_ca_certs=None if tls is None or tls.client_authority is None else str(tls.client_authority),
            ssl_cert_reqs=ssl.CERT_NONE if tls is None or tls.client_authority is None else ssl.CERT_REQUIRED,
        )
        return Server(config)


class Server(uvicorn.Server):
    """uvicorn's server without hands on the process's signals."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leaves signals alone."""
        yield


def split_address(address: str) -> tuple[str, int]:
    """``host:port`` or ``[v6]:port``. Raises ``ListenError``."""
    host, _, port = address.rpartition(":")
    if not port.isdigit() or int(port) > 65535:
        raise ListenError(f"expected HOST:PORT, got {address!r}")
    return host.strip("[]") or "0.0.0.0", int(port)


async def serve(listeners: list[Listener], clock: Clock, stop: asyncio.Event) -> None:
    """Serves all until ``stop``; raises ``ListenError`` when one cannot listen."""
    servers = [(listener, listener.server()) for listener in listeners]
    async with asyncio.TaskGroup() as tasks:
        watchers = [
            tasks.create_task(_renew(listener, server, clock))
            for listener, server in servers
            if listener.tls is not None
        ]
        running = [tasks.create_task(_serve(listener, server)) for listener, server in servers]
        await stop.wait()
        for _, server in servers:
            server.should_exit = True
        await asyncio.gather(*running)
        for watcher in watchers:
            watcher.cancel()


async def _serve(listener: Listener, server: Server) -> None:
    LOG.info("listening name=%s address=%s tls=%s", listener.name, listener.address, listener.tls is not None)
    try:
        await server.serve()
    except SystemExit:
        raise ListenError(f"cannot listen on {listener.address} ({listener.name})") from None


async def _renew(listener: Listener, server: Server, clock: Clock) -> Never:
    tls = listener.tls
    assert tls is not None, "only listeners with TLS are renewed"  # noqa: S101 - states what the caller guarantees
    known = await asyncio.to_thread(tls.stamp)
    while True:
        await clock.sleep(CERTIFICATE_INTERVAL)
        try:
            stamp = await asyncio.to_thread(tls.stamp)
            if stamp != known and server.config.ssl is not None:
                await asyncio.to_thread(server.config.ssl.load_cert_chain, tls.certificate, tls.key)
                known = stamp
                LOG.info("certificate renewed name=%s", listener.name)
        except (OSError, ssl.SSLError) as error:
            LOG.error("certificate not renewed, the old one stays name=%s error=%s", listener.name, error)
