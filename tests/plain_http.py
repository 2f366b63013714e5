"""HTTP without TLS, between processes or within this one, at little cost.

A client of httpx2 reads all certificates of the machine when it is made, and looks for proxies, redirects, cookies and
authentication with each request. Both take longer than most tests.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, Final

import httpx2 as httpx

TRUSTS_NONE: Final = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


def plain_client(**settings: Any) -> httpx.AsyncClient:
    """A client for ``http://`` addresses. It trusts no certificate and takes nothing from the environment."""
    return httpx.AsyncClient(verify=TRUSTS_NONE, trust_env=False, **settings)


class DirectClient(httpx.AsyncClient):
    """A client that hands each request to its transport and does nothing else."""

    def __init__(
        self, transport: httpx.AsyncBaseTransport, base_url: str = "", headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(transport=transport, trust_env=False)
        self._direct, self._base, self._always = transport, base_url, dict(headers or {})

    def build_request(self, method: str, url: httpx.URL | str, **parts: Any) -> httpx.Request:
        given = {name: parts[name] for name in ("params", "content", "json") if parts.get(name) is not None}
        headers = self._always | dict(parts.get("headers") or {})
        return httpx.Request(method, _url(f"{self._base}{url}"), headers=headers, **given)

    async def send(self, request: httpx.Request, *, stream: bool = False, **_: Any) -> httpx.Response:
        response = await self._direct.handle_async_request(request)
        response.request = request
        if not stream:
            await response.aread()
        return response


class InThisProcess(httpx.AsyncBaseTransport):
    """Applications of this process by the host of the URL, such as ``http://agents``.

    Each is made when the first request comes for it: most tests need one of them.
    """

    def __init__(self, makers: Mapping[str, Callable[[], Any]]) -> None:
        self._makers = makers
        self._by_host: dict[str, httpx.ASGITransport] = {}

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        host = request.url.host
        if host not in self._by_host:
            self._by_host[host] = httpx.ASGITransport(self._makers[host]())
        return await self._by_host[host].handle_async_request(request)


_url = cache(httpx.URL)
