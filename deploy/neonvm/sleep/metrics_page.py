"""Fetches a guest's metrics before it falls asleep."""

from __future__ import annotations

import asyncio
from typing import Final

from deploy.neonvm.addressing import METRICS_PORT
from deploy.neonvm.ports import GuestSpec, NetworkError, PodSockets
from deploy.neonvm.qemu.daemon import exchange

_REQUEST: Final = b"GET /metrics HTTP/1.0\r\nHost: guest\r\n\r\n"
_SECONDS: Final = 5.0
_LARGEST: Final = 256 * 1024
"""Bytes; our image exports about 40 KiB."""


async def fetch_metrics_page(spec: GuestSpec, sockets: PodSockets) -> bytes:
    """The guest's node_exporter page; empty if it is unreachable, slow or too large."""
    try:
        async with asyncio.timeout(_SECONDS):
            connection = await sockets.connect(spec.pod, spec.network.guest_host, METRICS_PORT)
            answer = await exchange(connection, _REQUEST, _LARGEST + 1)
    except (OSError, TimeoutError, NetworkError):
        return b""
    head, _, page = answer.partition(b"\r\n\r\n")
    is_page = len(answer) <= _LARGEST and head.split(b"\r\n", 1)[0].split()[1:2] == [b"200"]
    return page if is_page else b""
