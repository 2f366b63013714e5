"""Metrics page of a sleeping guest: the essential metrics of its last scrape (pure)."""

from __future__ import annotations

import re
from typing import Final

MAX_RESPONSE: Final = 2800
"""Bytes of the response including its headers: two segments at an MTU of 1500."""
MAX_LINE: Final = 256

_HEAD: Final = (
    "HTTP/1.1 {status}\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n"
    "Content-Length: {length}\r\nConnection: close\r\n\r\n"
)
_HEAD_ROOM: Final = 160
_ASLEEP: Final = b"autoscale_asleep 1\n"
# Samples only. Lines with a timestamp are dropped too, because Prometheus rejects old samples.
_LINE: Final = re.compile(rb"[a-zA-Z_:][a-zA-Z0-9_:]*+(?:\{.*\})? [^ ]++")
_ESSENTIAL: Final = (
    b"autoscale_",
    b"node_uname_info",
    b"node_boot_time_seconds",
    b"node_load",
    b"node_memory_MemTotal_bytes",
    b"node_memory_MemAvailable_bytes",
    b"node_memory_MemFree_bytes",
    b"node_memory_Swap",
    b"node_filesystem_size_bytes",
    b"node_filesystem_avail_bytes",
    b"node_vmstat_oom_kill",
    b"node_pressure_",
    b"node_cpu_seconds_total",
)
"""Prefixes of metric families in order of importance; the page is filled in this order."""


def asleep_response(page: bytes) -> bytes:
    """HTTP response with the essential metrics of ``page`` and ``autoscale_asleep 1``; at most ``MAX_RESPONSE`` bytes.

    >>> asleep_response(b"# TYPE node_load1 gauge\\nnode_load1 0.5\\n").split(b"\\r\\n\\r\\n")[1]
    b'autoscale_asleep 1\\nnode_load1 0.5\\n'
    """
    families = [bytearray() for _ in _ESSENTIAL]
    for line in page.splitlines():
        rank = _rank(line)
        if rank is not None and len(families[rank]) < MAX_RESPONSE:
            families[rank] += line + b"\n"
    body, room = bytearray(_ASLEEP), MAX_RESPONSE - _HEAD_ROOM
    for family in families:
        # All or nothing: a sum over part of a family would be wrong.
        if len(body) + len(family) <= room:
            body += family
    return _response("200 OK", bytes(body))


def _rank(line: bytes) -> int | None:
    if len(line) > MAX_LINE or line.startswith(_ASLEEP.split()[0]) or _LINE.fullmatch(line) is None:
        return None
    return next((rank for rank, family in enumerate(_ESSENTIAL) if line.startswith(family)), None)


def _response(status: str, body: bytes) -> bytes:
    return _HEAD.format(status=status, length=len(body)).encode() + body


NOT_FOUND: Final = _response("404 Not Found", b"the guest is asleep; only /metrics is available\n")
"""Response to any other path."""
