"""A connection to a pod, which may send anything: neither a flood nor an endless response delays other pods.

OpenSSL reads on from a socket until it has data for its caller, and asyncio decrypts all that has arrived at once. But
there are TLS messages without data, a pod can send megabytes of them per second, and each megabyte takes 0.2 s of CPU.
So a connection decrypts 16 KiB at a time, and takes no more bytes per second than a runner needs.

It uses 22 KiB of memory while idle, asyncio's TLS streams 283 KiB; the controller has a pending long poll for every
sleeping VM.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Final, TypeVar

from deploy.neonvm.access.keys import fingerprint
from deploy.neonvm.network.sockets import connected, discard_on_close, enable_keepalive, tcp_socket

_Done = TypeVar("_Done")

_CHUNK: Final = 16 * 1024
"""The largest TLS record."""
RATE: Final = 64 * 1024
"""Bytes per second. A migration, polled five times a second, takes 10 KiB."""
BURST: Final = 512 * 1024
"""Bytes. The largest response has 256 KiB."""


class PodConnection:
    """One connection, with TLS if it has a ``context``; create it with ``opened``. ``reader`` has what the pod sent."""

    def __init__(self, end: socket.socket, context: ssl.SSLContext | None) -> None:
        self._socket = end
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = None if context is None else context.wrap_bio(self._incoming, self._outgoing)
        self._sending = asyncio.Lock()
        self._paid_until = 0.0
        self._may_read = asyncio.Event()
        self._may_read.set()
        self.reader = asyncio.StreamReader()
        # It calls `pause_reading` while it has too much.
        self.reader.set_transport(self)  # type: ignore[arg-type]  # these two methods are all that it uses
        self._feeding: asyncio.Task[None]

    @classmethod
    async def opened(cls, address: str, port: int, context: ssl.SSLContext | None) -> PodConnection:
        """Connect, and complete the TLS handshake. Raises ``OSError``."""
        end = await connected(tcp_socket(), address, port)
        try:
            # A lost response would leave the caller waiting forever.
            enable_keepalive(end)
            connection = cls(end, context)
            if connection._tls is not None:
                await connection._done(connection._tls.do_handshake)
                await connection._flush()
        except BaseException:
            end.close()
            raise
        connection._feeding = asyncio.create_task(connection._feed())
        return connection

    @property
    def fingerprint(self) -> bytes:
        """Fingerprint of the peer's certificate."""
        return b"" if self._tls is None else fingerprint(self._tls)

    async def send(self, data: bytes) -> None:
        """Send all of ``data``. Raises ``OSError``."""
        if self._tls is None:
            await asyncio.get_running_loop().sock_sendall(self._socket, data)
            return
        # A write needs no input: TLS 1.3 has no renegotiation.
        while data:
            data = data[self._tls.write(data) :]
        await self._flush()

    def close(self) -> None:
        """Close the connection."""
        self._feeding.cancel()
        # The event loop must stop watching the socket before it is closed.
        self._feeding.add_done_callback(lambda _: self._socket.close())

    def reset(self) -> None:
        """Close the connection, and discard what the peer has not received."""
        with suppress(OSError):
            discard_on_close(self._socket)
        self.close()

    def pause_reading(self) -> None:
        """See ``asyncio.ReadTransport``."""
        self._may_read.clear()

    def resume_reading(self) -> None:
        """See ``asyncio.ReadTransport``."""
        self._may_read.set()

    async def _feed(self) -> None:
        try:
            while part := await self._decrypted():
                self.reader.feed_data(part)
                await self._may_read.wait()
        except OSError as error:
            self.reader.set_exception(error)
        else:
            self.reader.feed_eof()

    async def _decrypted(self) -> bytes:
        if self._tls is None:
            return await self._received()
        # Empty at the end, which a peer need not announce.
        return await self._done(partial(self._tls.read, _CHUNK))

    async def _done(self, step: Callable[[], _Done]) -> _Done:
        """Run a TLS operation until it has read enough; return its result."""
        while True:
            with suppress(ssl.SSLWantReadError):
                return step()
            await self._flush()
            if part := await self._received():
                self._incoming.write(part)
            else:
                self._incoming.write_eof()

    async def _flush(self) -> None:
        async with self._sending:
            if data := self._outgoing.read():
                await asyncio.get_running_loop().sock_sendall(self._socket, data)

    async def _received(self) -> bytes:
        """The next bytes from the network, if need be after a pause."""
        loop = asyncio.get_running_loop()
        part = await loop.sock_recv(self._socket, _CHUNK)
        self._paid_until = max(self._paid_until, loop.time()) + len(part) / RATE
        # Even without a pause, `sock_recv` alone would not let others run.
        await asyncio.sleep(max(0.0, self._paid_until - loop.time() - BURST / RATE))
        return part
