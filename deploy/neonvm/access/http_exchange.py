"""One HTTP request and its bounded answer on an open connection."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Final

_MOST_BYTES: Final = 256 * 1024


@dataclass(frozen=True, slots=True)
class RunnerHttpResponse:
    """Names of headers are in lower case."""

    status: int
    headers: dict[str, str]
    body: bytes


async def exchanged(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, method: str, path: str, body: bytes
) -> RunnerHttpResponse:
    """The answer to one request. Raises ``OSError``."""
    # HTTP/1.0, so that no server sends its answer in chunks.
    head = f"{method} {path} HTTP/1.0\r\nHost: runner\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
    writer.write(f"{head}\r\n\r\n".encode() + body)
    await writer.drain()
    try:
        status, headers = _head((await reader.readuntil(b"\r\n\r\n")).decode("latin-1"))
        return RunnerHttpResponse(status, headers, await _body(reader, headers.get("content-length")))
    except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, ValueError) as error:
        raise OSError(f"the answer to {method} {path} cannot be read: {error}") from error


def _head(text: str) -> tuple[int, dict[str, str]]:
    first, *lines = text.split("\r\n")
    words = first.split(" ", 2)
    if len(words) < 2 or not words[0].startswith("HTTP/1.") or not (words[1].isascii() and words[1].isdigit()):
        raise ValueError("no HTTP")
    fields = (line.partition(":") for line in lines if line)
    return int(words[1]), {name.lower(): value.strip() for name, _, value in fields}


async def _body(reader: asyncio.StreamReader, length: str | None) -> bytes:
    """As long as the header says; without one, all until the other end hangs up."""
    if length is not None:
        # Checked before reading: the length is only a claim of the other end.
        if int(length) > _MOST_BYTES:
            raise ValueError("it is too long")
        return await reader.readexactly(int(length))
    body = b""
    while part := await reader.read(_MOST_BYTES):
        body += part
        if len(body) > _MOST_BYTES:
            raise ValueError("it is too long")
    return body
