"""A TLS connection for a request whose answer may take days: 19 KiB while nothing comes.

asyncio's own TLS streams take 283 KiB each, and a controller holds such a connection for every VM that sleeps.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from functools import partial
from typing import Final, TypeVar

from deploy.neonvm.access.keys import fingerprint
from deploy.neonvm.network.sockets import connected, notice_loss, tcp_socket

_Done = TypeVar("_Done")

_CHUNK: Final = 16 * 1024
"""The largest TLS record."""


class HeldConnection:
    """One connection, by ``opened``. Every call raises ``OSError``. Close it when done."""

    def __init__(self, tls: ssl.SSLSocket) -> None:
        self._tls = tls

    @classmethod
    async def opened(cls, address: str, port: int, context: ssl.SSLContext) -> HeldConnection:
        """A connection after its handshake."""
        plain = await connected(tcp_socket(), address, port)
        try:
            # An answer that is lost on its way would leave the caller waiting.
            notice_loss(plain)
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
        """Fingerprint of the other end's certificate, whose key it has proven to hold."""
        return fingerprint(self._tls)

    async def send(self, request: bytes) -> None:
        """Sends all of ``request``."""
        while request:
            request = request[await self._done(partial(self._tls.send, request)) :]

    async def feed(self, reader: asyncio.StreamReader) -> None:
        """Gives ``reader`` all that comes, until cancelled or to the end; a fault is an end."""
        try:
            while part := await self._done(partial(self._tls.recv, _CHUNK)):
                reader.feed_data(part)
                # Its limits hold only if it may look at each part before the next one.
                await asyncio.sleep(0)
        except OSError as error:
            reader.set_exception(error)
        else:
            reader.feed_eof()

    def close(self) -> None:
        """Hangs up."""
        self._tls.close()

    async def _done(self, step: Callable[[], _Done]) -> _Done:
        """The result of ``step``, repeated until it need not wait for the other end."""
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
