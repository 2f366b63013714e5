"""Copies of byte streams."""

from __future__ import annotations

import asyncio
from typing import Final

_CHUNK: Final = 64 * 1024


async def copy_stream(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    """Copy until EOF. Raises ``OSError``."""
    while part := await source.read(_CHUNK):
        target.write(part)
        await target.drain()


async def copy_all(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    """Copy until EOF, and pass that on. Raises ``OSError``."""
    await copy_stream(source, target)
    if target.can_write_eof():
        # Half-close: the other direction may still send.
        target.write_eof()
