"""One HTTP/1.1 request at a time on a connection that may be kept: all that the small servers in pods need."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Final

LARGEST_BODY: Final = 4096
_LENGTH_DIGITS: Final = 9
"""A length with more of them is too large for everyone, and `int` refuses thousands."""


@dataclass(frozen=True, slots=True)
class Reply:
    """One answer."""

    status: str
    text: str


async def read_request(reader: asyncio.StreamReader, largest: int = LARGEST_BODY) -> tuple[str, str, bytes] | None:
    """Method, target and body of the next request; None if there is none that can be understood."""
    try:
        # HTTP's headers are Latin-1; every byte decodes.
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    except (asyncio.IncompleteReadError, asyncio.LimitOverrunError):
        return None
    first, *headers = head.split("\r\n")
    words = first.split(" ")
    fields = {name.lower(): value.strip() for name, _, value in (header.partition(":") for header in headers)}
    length = fields.get("content-length", "0")
    # Chunked bodies are not understood: no client of ours sends one.
    if len(words) != 3 or not length.isdecimal() or len(length) > _LENGTH_DIGITS or int(length) > largest:
        return None
    return words[0], words[1], await reader.readexactly(int(length))


async def write_reply(writer: asyncio.StreamWriter, reply: Reply, content_type: str = "text/plain") -> None:
    """Sends one answer. Raises ``OSError``."""
    body = reply.text.encode()
    head = f"HTTP/1.1 {reply.status}\r\nContent-Type: {content_type}\r\nContent-Length: {len(body)}"
    writer.write(f"{head}\r\n\r\n".encode() + body)
    await writer.drain()
