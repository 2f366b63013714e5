"""A TLS connection for long polls that uses 19 KiB of memory while idle.

asyncio's TLS streams use 283 KiB, and the controller has a pending long poll for every sleeping VM.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from functools import partial
from typing import Final, TypeVar

from deploy.neonvm.access.keys import fingerprint
from deploy.neonvm.network.sockets import connected, discard_on_close, enable_keepalive, tcp_socket

_Done = TypeVar("_Done")

_CHUNK: Final = 16 * 1024
"""The largest TLS record."""


class LongPollConnection:
    """One connection; create it with ``opened``. All methods raise ``OSError``."""

    def __init__(self, tls: ssl.SSLSocket) -> None:
        self._tls = tls

    @classmethod
    async def opened(cls, address: str, port: int, context: ssl.SSLContext) -> LongPollConnection:
        """Connect, and complete the TLS handshake."""
        plain = await connected(tcp_socket(), address, port)
        try:
            # A lost response would leave the caller waiting forever.
            enable_keepalive(plain)
            discard_on_close(plain)
            connection = cls(context.wrap_socket(plain, do_handshake_on_connect=False))
        except BaseException:
            plain.close()
            raise
        try:
            await connection._done(connection._tls.do_handshake)
        except BaseException:
            connection.close()
            raise
        return connection

    @property
    def fingerprint(self) -> bytes:
        """Fingerprint of the peer's certificate."""
        return fingerprint(self._tls)

    async def send(self, request: bytes) -> None:
        """Send all of ``request``."""
        while request:
            request = request[await self._done(partial(self._tls.send, request)) :]

    async def feed(self, reader: asyncio.StreamReader) -> None:
        """Feed ``reader`` from the connection until its end, an error, or cancellation."""
        try:
            while part := await self._done(partial(self._tls.recv, _CHUNK)):
                reader.feed_data(part)
                # Let the reader enforce its limit before the next part.
                await asyncio.sleep(0)
        except OSError as error:
            reader.set_exception(error)
        else:
            reader.feed_eof()

    def close(self) -> None:
        """Close the connection."""
        self._tls.close()

    async def _done(self, step: Callable[[], _Done]) -> _Done:
        """Run a non-blocking TLS operation until it completes; return its result."""
        loop = asyncio.get_running_loop()
        while True:
            try:
                return step()
            except ssl.SSLWantReadError:
                add, remove = loop.add_reader, loop.remove_reader
            except ssl.SSLWantWriteError:
                add, remove = loop.add_writer, loop.remove_writer
            ready = asyncio.Event()
            add(self._tls, ready.set)
            try:
                await ready.wait()
            finally:
                remove(self._tls)
