"""Answers as they arrive: pages of lists, decoded without holding the event loop, and the lines of a watch."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Final

from protocol.kubernetes.api import LONGEST_PAGE, ApiCall, PageTooLargeError, unknown
from protocol.kubernetes.pages import LineSplitter, Page, read_page

LARGE: Final = 64 * 1024
"""Bytes. A larger page is decoded in a thread; decoding a smaller one takes less time than the thread would."""


async def decoded(body: bytes) -> Page:
    """The page in ``body``. Raises ``UnreadableAnswerError``."""
    return read_page(body) if len(body) < LARGE else await asyncio.to_thread(read_page, body)


async def joined(call: ApiCall, pieces: AsyncIterator[bytes]) -> bytes:
    """The whole body of an answer. Raises ``PageTooLargeError``."""
    body = bytearray()
    # Content-Length is absent from chunked responses, so the bytes are counted as they arrive.
    async for piece in pieces:
        body += piece
        if len(body) > LONGEST_PAGE:
            raise too_large(call)
    return bytes(body)


def too_large(call: ApiCall) -> PageTooLargeError:
    """The error of an answer with more than ``LONGEST_PAGE`` bytes."""
    return PageTooLargeError(f"{call.path}: a page has more than {LONGEST_PAGE} bytes")


async def lines(
    call: ApiCall, pieces: AsyncIterator[bytes], failures: tuple[type[Exception], ...]
) -> AsyncIterator[bytes]:
    """The lines of a watch; ``failures`` are the client's errors that leave the outcome unknown."""
    # A piece of the stream may end in the middle of a line, or of a character.
    splitter = LineSplitter()
    try:
        async for piece in pieces:
            for line in splitter.feed(piece):
                yield line
    except failures as error:
        raise unknown(call, error) from error
