"""Connections to registries, and to the stores and token services that they name, through the environment's proxies."""

from __future__ import annotations

from collections.abc import Mapping

import httpx2 as httpx

from protocol.kubernetes.proxies import proxy_for


class ProxiedTransport(httpx.BaseTransport):
    """Takes the proxy for each URL by the rule of ``proxy_for``: one rule for all our clients."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = environment
        self._transports: dict[str, httpx.HTTPTransport] = {}

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """The answer. Raises ``ProxyError`` if the proxy cannot be used."""
        proxy = proxy_for(str(request.url), self._environment)
        # Empty for a direct connection, which has a transport like any other.
        if proxy not in self._transports:
            self._transports[proxy] = httpx.HTTPTransport(proxy=proxy or None)
        return self._transports[proxy].handle_request(request)

    def close(self) -> None:
        """Closes all connections."""
        for transport in self._transports.values():
            transport.close()
