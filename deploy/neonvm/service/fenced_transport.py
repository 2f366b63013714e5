"""An HTTP transport that writes only while this process holds the Lease, and no longer than it does."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import httpx2 as httpx

from deploy.neonvm.texts import controller as texts
from protocol.units import Seconds

_READS = frozenset({"GET", "HEAD"})


class FencedTransport(httpx.AsyncBaseTransport):
    """Passes requests on to ``inner``. ``remaining`` is for how long this process may still write."""

    def __init__(self, inner: httpx.AsyncBaseTransport, remaining: Callable[[], Seconds]) -> None:
        self._inner = inner
        self._remaining = remaining

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """One request. A write without the Lease raises ``ConnectError``, one that outlasts it ``ReadTimeout``."""
        if request.method in _READS:
            return await self._inner.handle_async_request(request)
        left = self._remaining()
        if left <= 0:
            raise httpx.ConnectError(texts.NO_LEASE, request=request)
        try:
            # One limit over all steps: each step's own would let a write that waited for a connection begin too late.
            async with asyncio.timeout(left):
                return await self._inner.handle_async_request(request)
        except TimeoutError:
            raise httpx.ReadTimeout(texts.LEASE_ENDED, request=request) from None

    async def aclose(self) -> None:
        """Closes ``inner``."""
        await self._inner.aclose()
