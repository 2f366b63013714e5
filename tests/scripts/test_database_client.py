"""The client of the measurements leaves no session behind in the database."""

from __future__ import annotations

import asyncio

import pytest

from scripts.database_client import DatabaseError, DatabaseSession


class _SilentDatabase:
    """Accepts connections, and never answers. ``asked`` and ``left`` are set by a client's packet and by its end."""

    def __init__(self, *, hangs_up: bool = False) -> None:
        self._hangs_up = hangs_up
        self.asked, self.left = asyncio.Event(), asyncio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(8)
        self.asked.set()
        if self._hangs_up:
            writer.write_eof()
        await reader.read()
        self.left.set()
        writer.close()


@pytest.mark.parametrize("hangs_up", [False, True])
async def test_failed_open_closes_connection(*, hangs_up: bool) -> None:
    """A client that gives up, or is refused, must not occupy one of the database's connections."""
    database = _SilentDatabase(hangs_up=hangs_up)
    async with asyncio.timeout(30), await asyncio.start_server(database.serve, "127.0.0.1", 0) as server:
        host, port = server.sockets[0].getsockname()
        opening = asyncio.create_task(DatabaseSession.open(host, port, "secret"))
        await database.asked.wait()
        if not hangs_up:
            opening.cancel()
        with pytest.raises((asyncio.CancelledError, DatabaseError)):
            await opening
        await database.left.wait()
