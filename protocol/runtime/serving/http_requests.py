"""HTTP/1.1 requests on a connection that may stay open: just enough for the small servers of agents and pods."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final

LARGEST_BODY: Final = 4096
_LENGTH_DIGITS: Final = 9
"""Maximum digits of Content-Length; more would be too large for any caller, and ``int`` rejects thousands."""


class NotHttpError(ValueError):
    """Not an HTTP request."""


@dataclass(frozen=True, slots=True)
class RequestHead:
    """A request without its body. Header names are in lower case; of a repeated header, the first counts."""

    method: str
    target: str
    headers: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class HttpResponse:
    """A response."""

    body: bytes
    status: HTTPStatus = HTTPStatus.OK
    content_type: str = "text/plain; charset=utf-8"


async def read_head(reader: asyncio.StreamReader) -> RequestHead | None:
    """Read the head of the next request; None if the peer disconnects, or the head exceeds the stream's limit.

    Raises ``NotHttpError``.
    """
    try:
        # HTTP headers are Latin-1, in which every byte is valid.
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    except (asyncio.IncompleteReadError, asyncio.LimitOverrunError):
        return None
    first, *lines = head.split("\r\n")
    words = first.split(" ")
    # A request line has a method, a target and a version.
    if len(words) != 3:
        raise NotHttpError("invalid request line")
    headers: dict[str, str] = {}
    for name, _, value in (line.partition(":") for line in lines):
        headers.setdefault(name.lower(), value.strip())
    return RequestHead(words[0], words[1], headers)


async def read_request(reader: asyncio.StreamReader, largest: int = LARGEST_BODY) -> tuple[str, str, bytes] | None:
    """Read method, target and body of the next request; None if it is invalid, or the peer disconnects."""
    try:
        head = await read_head(reader)
    except NotHttpError:
        return None
    # Chunked bodies are not supported, because our own clients do not send them.
    if head is None or "transfer-encoding" in head.headers:
        return None
    length = head.headers.get("content-length", "0")
    if not length.isdecimal() or len(length) > _LENGTH_DIGITS or int(length) > largest:
        return None
    return head.method, head.target, await reader.readexactly(int(length))


async def write_response(writer: asyncio.StreamWriter, response: HttpResponse, *headers: str) -> None:
    """Send a response with additional ``headers``. Raises ``OSError``."""
    lines = (
        f"HTTP/1.1 {response.status.value} {response.status.phrase}",
        f"Content-Type: {response.content_type}",
        f"Content-Length: {len(response.body)}",
        *headers,
    )
    writer.write("\r\n".join((*lines, "", "")).encode() + response.body)
    await writer.drain()
