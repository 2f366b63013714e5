"""An HTTP transport that writes only while this process holds the Lease, and no longer than it does."""

from __future__ import annotations

from collections.abc import Callable

import httpx2 as httpx

from protocol.units import Seconds

_READS = frozenset({"GET", "HEAD"})


class FencedTransport(httpx.AsyncBaseTransport):
    """Passes requests on to ``inner``. ``remaining`` is for how long this process may still write."""

    def __init__(self, inner: httpx.AsyncBaseTransport, remaining: Callable[[], Seconds]) -> None:
        self._inner = inner
        self._remaining = remaining

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """One request. Raises ``ConnectError`` for a write if the Lease is not held."""
        if request.method not in _READS:
            left = self._remaining()
            if left <= 0:
                raise httpx.ConnectError("this process does not hold the Lease", request=request)
            limits = request.extensions.get("timeout", {})
            # Cut to the rest of the Lease: nothing waits for longer than this process may write.
            request.extensions["timeout"] = {name: min(left, limits.get(name) or left) for name in _LIMITS}
        return await self._inner.handle_async_request(request)

    async def aclose(self) -> None:
        """Closes ``inner``."""
        await self._inner.aclose()


_LIMITS = ("connect", "read", "write", "pool")
