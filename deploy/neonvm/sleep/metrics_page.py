"""Fetches a guest's metrics before it falls asleep."""

from __future__ import annotations

import asyncio
from typing import Final
from urllib.parse import urlsplit

from deploy.neonvm.ports import GuestSpec, NetworkError, PodSockets

_SECONDS: Final = 5.0
_LARGEST: Final = 256 * 1024
"""Bytes; our image exports about 40 KiB."""


async def fetch_metrics_page(spec: GuestSpec, sockets: PodSockets) -> bytes:
    """The guest's node_exporter page; empty if it is unreachable, slow or too large."""
    url = urlsplit(spec.network.metrics_url)
    request = f"GET {url.path} HTTP/1.0\r\nHost: guest\r\n\r\n".encode()
    try:
        async with asyncio.timeout(_SECONDS):
            connection = await sockets.connect(spec.pod, url.hostname or "", url.port or 80)
            reader, writer = await asyncio.open_connection(sock=connection)
            try:
                writer.write(request)
                await writer.drain()
                answer = await _all(reader)
            finally:
                writer.close()
    except (OSError, TimeoutError, NetworkError):
        return b""
    head, _, page = answer.partition(b"\r\n\r\n")
    return page if head.split(b"\r\n", 1)[0].split()[1:2] == [b"200"] else b""


async def _all(reader: asyncio.StreamReader) -> bytes:
    # The guest is not trusted, so the response is bounded.
    answer = bytearray()
    while len(answer) <= _LARGEST and (part := await reader.read(_LARGEST)):
        answer += part
    return bytes(answer) if len(answer) <= _LARGEST else b""
