"""httpx2 over connections of our own: a call takes a third of the CPU that it takes over httpx2's.

Rules that hold here:

- For clients that make thousands of calls, such as the local cluster's own.
- Errors are httpx2's, so that a client does not see which transport it has.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from math import inf
from typing import Final

import httpx2 as httpx

from protocol.runtime.http_connection import BrokenConnectionError, HttpConnection
from protocol.runtime.kubernetes.pool import ConnectionPool

# Answers lose their headers here, so a compressed body could not be recognized; HTTP/1.1 keeps connections by default.
_LEFT_OUT: Final = frozenset({b"accept-encoding", b"connection"})


class DirectTransport(httpx.AsyncBaseTransport):
    """Sends requests over the connections of ``pool``."""

    def __init__(self, pool: ConnectionPool) -> None:
        self._pool = pool

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """The head of the answer; its body is read as it comes."""
        patience = request.extensions["timeout"]
        now = asyncio.get_running_loop().time
        with _as_httpx(request, httpx.ConnectTimeout, httpx.ConnectError):
            # Waits without a limit, since a thousand pods may report at once. The deadline starts once there is a
            # connection.
            connection = await self._pool.lend(inf)
        try:
            with _as_httpx(request, httpx.ReadTimeout, httpx.ReadError):
                answer = await connection.ask(_written(request, await request.aread()), now() + patience["read"])
        except BaseException:
            # Cancellation too: the connection goes back to the pool, which closes it because its answer is incomplete.
            self._pool.take_back(connection)
            raise
        # Parsing all headers would cost more than the rest of a call, and clients need only this one.
        headers = {"Retry-After": answer.retry_after} if answer.retry_after else {}
        body = _Body(request, connection, self._pool, patience["read"])
        return httpx.Response(answer.status, headers=headers, stream=body, request=request)

    async def aclose(self) -> None:
        """Closes the connections that nothing uses."""
        self._pool.close()


class _Body(httpx.AsyncByteStream):
    """The body of one answer; the connection is free again once it is closed."""

    def __init__(
        self, request: httpx.Request, connection: HttpConnection, pool: ConnectionPool, silence: float
    ) -> None:
        self._request, self._connection, self._pool, self._silence = request, connection, pool, silence
        self._is_open = True

    async def __aiter__(self) -> AsyncIterator[bytes]:
        with _as_httpx(self._request, httpx.ReadTimeout, httpx.ReadError):
            while (piece := await self._connection.piece(self._silence)) is not None:
                yield piece

    async def aclose(self) -> None:
        if self._is_open:
            self._is_open = False
            self._pool.take_back(self._connection)


@contextmanager
def _as_httpx(
    request: httpx.Request, late: type[httpx.TimeoutException], broken: type[httpx.NetworkError]
) -> Iterator[None]:
    try:
        yield
    except TimeoutError as error:
        raise late(str(error), request=request) from error
    except BrokenConnectionError as error:
        raise httpx.RemoteProtocolError(str(error), request=request) from error
    except OSError as error:
        raise broken(str(error), request=request) from error


def _written(request: httpx.Request, body: bytes) -> bytes:
    lines = [b"%s %s HTTP/1.1" % (request.method.encode(), request.url.raw_path)]
    lines += [b"%s: %s" % header for header in request.headers.raw if header[0].lower() not in _LEFT_OUT]
    return b"\r\n".join((*lines, b"", body))
