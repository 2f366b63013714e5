"""HTTP without TLS, between processes or within this one.

A client of httpx reads all certificates of the machine when it is made, which takes longer than most tests. These read
none.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from typing import Any, Final

import httpx

TRUSTS_NONE: Final = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


def plain_client(**settings: Any) -> httpx.AsyncClient:
    """A client for ``http://`` addresses. It trusts no certificate and takes nothing from the environment."""
    return httpx.AsyncClient(verify=TRUSTS_NONE, trust_env=False, **settings)


class InThisProcess(httpx.AsyncBaseTransport):
    """Applications of this process by the host of the URL, such as ``http://agents``."""

    def __init__(self, apps: Mapping[str, Any]) -> None:
        self._by_host = {host: httpx.ASGITransport(app) for host, app in apps.items()}

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        return await self._by_host[request.url.host].handle_async_request(request)
