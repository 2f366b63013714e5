"""Pages of lists, decoded without holding the event loop."""

from __future__ import annotations

import asyncio
from typing import Final

from protocol.kubernetes.pages import Page, read_page

LARGE: Final = 64 * 1024
"""Bytes. A larger page is decoded in a thread; decoding a smaller one takes less time than the thread would."""


async def decoded(body: bytes) -> Page:
    """The page in ``body``. Raises ``UnreadableAnswerError``."""
    return read_page(body) if len(body) < LARGE else await asyncio.to_thread(read_page, body)
