"""HTTP clients with TCP keepalive, whose connections end when the peer disappears silently, and without cookies."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Sequence
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import Final

import httpx2 as httpx

from protocol.runtime.http_connection import HttpConnection

# A watch only reads, so only the kernel's probes detect that the server's machine has disappeared.
KEEPALIVE: Final[Sequence[tuple[int, int, int]]] = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 10),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
)
"""Socket options: after 10 s of silence three probes, 5 s apart."""


async def open_connection(
    host: str, port: int, tls: ssl.SSLContext | None = None, extra_header: bytes = b""
) -> HttpConnection:
    """Open a connection; ``extra_header``: see ``HttpConnection``. Raises ``OSError``."""
    loop = asyncio.get_running_loop()
    _, connection = await loop.create_connection(lambda: HttpConnection(extra_header), host, port, ssl=tls)
    for level, option, value in KEEPALIVE:
        connection.socket.setsockopt(level, option, value)
    return connection


def probed_transport(verify: ssl.SSLContext | bool, limits: httpx.Limits, proxy: str = "") -> httpx.AsyncHTTPTransport:
    """An httpx transport with keepalive, through ``proxy`` (a URL) if set; it ignores proxies in the environment."""
    return httpx.AsyncHTTPTransport(
        verify=verify, limits=limits, trust_env=False, proxy=proxy or None, socket_options=list(KEEPALIVE)
    )


def no_cookies() -> CookieJar:
    """A jar for clients of programs that anyone may run, such as those in a VM's pod: it stores no cookies.

    Otherwise each response could add to our memory, and to each later request.
    """
    return CookieJar(DefaultCookiePolicy(allowed_domains=()))
