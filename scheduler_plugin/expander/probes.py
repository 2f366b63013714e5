"""A few pages over HTTP for Prometheus and the kubelet: ``/metrics``, ``/healthz`` and ``/readyz``.

Rules that hold here:

- One request per connection, GET only, and a peer that says nothing is hung up on: there is no state to lose.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Final

PATIENCE: Final = 5.0  # seconds for a peer to send its request
_TEXT: Final = "text/plain; version=0.0.4; charset=utf-8"

Pages = Mapping[str, Callable[[], bytes]]
"""What to answer on each path."""


async def serve_pages(pages: Pages, host: str, port: int) -> asyncio.Server:
    """Starts serving ``pages``; the caller closes the server. Raises ``OSError`` where the address is taken."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(PATIENCE):
                head = await reader.readuntil(b"\r\n\r\n")
            writer.write(_response(pages, head))
            await writer.drain()
        except (TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, ConnectionError):
            pass  # the client is gone, or speaks no HTTP
        finally:
            writer.close()

    return await asyncio.start_server(answer, host, port)


def _response(pages: Pages, head: bytes) -> bytes:
    method, _, rest = head.partition(b" ")
    page = pages.get(rest.partition(b" ")[0].partition(b"?")[0].decode("latin-1"))
    if method != b"GET":
        status, body = "405 Method Not Allowed", b"only GET\n"
    elif page is None:
        status, body = "404 Not Found", b"try /metrics, /healthz or /readyz\n"
    else:
        status, body = "200 OK", page()
    lines = (
        f"HTTP/1.1 {status}",
        f"Content-Type: {_TEXT}",
        f"Content-Length: {len(body)}",
        "Connection: close",
        "",
        "",
    )
    return "\r\n".join(lines).encode() + body
