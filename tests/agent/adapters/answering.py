"""HTTP peers that respond as a test specifies, without a network."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

import httpx2 as httpx

Answer = Callable[[httpx.Request], httpx.Response]


def client(answer: Answer) -> httpx.AsyncClient:
    """A client whose every request is answered by ``answer``."""
    return httpx.AsyncClient(transport=httpx.MockTransport(answer))


def silent() -> httpx.AsyncClient:
    """A client to a peer that never answers."""

    async def never(request: httpx.Request) -> httpx.Response:
        raise httpx.ReadTimeout("nothing came", request=request)

    return httpx.AsyncClient(transport=httpx.MockTransport(never))


def unreachable() -> httpx.AsyncClient:
    """A client to a peer that cannot be reached."""

    def refuse(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("connection refused", request=request)

    return client(refuse)


class Chunks(httpx.AsyncByteStream):
    """A body that arrives in pieces, and may break off with ``error``."""

    def __init__(self, *pieces: bytes, error: Exception | None = None) -> None:
        self._pieces = pieces
        self._error = error

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for piece in self._pieces:
            yield piece
        if self._error is not None:
            raise self._error
