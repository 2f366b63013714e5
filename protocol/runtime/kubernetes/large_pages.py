"""Processes responses as they arrive: decodes pages without blocking the event loop, and splits watches into lines."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Final

from protocol.kubernetes.api import ApiCall, PageTooLargeError, unknown
from protocol.kubernetes.pages import LineSplitter, Page, read_page

LARGE: Final = 64 * 1024
"""A page of more bytes is decoded in a thread; for a smaller one, the thread would cost more than decoding."""


async def decoded(body: bytes) -> Page:
    """Decode the page in ``body``. Raises ``UnreadableAnswerError``."""
    return read_page(body) if len(body) < LARGE else await asyncio.to_thread(read_page, body)


async def joined(call: ApiCall, pieces: AsyncIterator[bytes]) -> bytes:
    """The whole body of a response. Raises ``PageTooLargeError``."""
    body = bytearray()
    # Chunked responses have no Content-Length, so count bytes as they arrive.
    async for piece in pieces:
        body += piece
        if len(body) > call.longest:
            raise too_large(call)
    return bytes(body)


def too_large(call: ApiCall) -> PageTooLargeError:
    """The error for a page with more than ``call.longest`` bytes."""
    return PageTooLargeError(f"{call.path}: a page has more than {call.longest} bytes")


async def lines(
    call: ApiCall, pieces: AsyncIterator[bytes], failures: tuple[type[Exception], ...]
) -> AsyncIterator[bytes]:
    """Yield the lines of a watch; ``failures`` are the client's errors to convert."""
    # A piece may end in the middle of a line, or of a character.
    splitter = LineSplitter()
    try:
        async for piece in pieces:
            for line in splitter.feed(piece):
                yield line
    except failures as error:
        raise unknown(call, error) from error
