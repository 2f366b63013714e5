"""Sessions with a database that are open before a load begins: it begins with a query, not with a connection."""

from __future__ import annotations

import asyncio
import secrets
import struct
from typing import Final

from scripts.bench.scram import Proof

_PROTOCOL_3: Final = 196608
_AUTHENTICATION, _ERROR, _READY = b"R", b"E", b"Z"


class DatabaseError(Exception):
    """The database refused something; the message says what."""


class Session:
    """One connection as the user ``postgres``."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, password: str) -> None:
        self._reader = reader
        self._writer = writer
        self._proof = Proof(password, secrets.token_urlsafe(18))

    @classmethod
    async def open(cls, host: str, port: int, password: str) -> Session:
        """A session that is ready for queries. Raises ``DatabaseError`` and ``OSError``."""
        session = cls(*await asyncio.open_connection(host, port), password)
        settings = b"user\0postgres\0database\0postgres\0\0"
        session._writer.write(struct.pack("!ii", len(settings) + 8, _PROTOCOL_3) + settings)
        await session._until_ready()
        return session

    def begin(self, query: str) -> None:
        """Sends ``query``; ``finished`` waits for its end."""
        text = query.encode() + b"\0"
        self._writer.write(b"Q" + struct.pack("!i", len(text) + 4) + text)

    async def finished(self) -> None:
        """Returns when the query has ended. Raises ``DatabaseError``."""
        await self._until_ready()

    def close(self) -> None:
        """Ends the session."""
        self._writer.close()

    async def _until_ready(self) -> None:
        said = b""
        while True:
            try:
                kind, length = struct.unpack("!ci", await self._reader.readexactly(5))
                body = await self._reader.readexactly(length - 4)
            except (asyncio.IncompleteReadError, OSError) as error:
                raise DatabaseError(f"the database ended the connection: {error}") from None
            if kind == _AUTHENTICATION:
                self._writer.write(self._proof.answer(body))
            elif kind == _ERROR:
                said = body
            elif kind == _READY and not said:
                return
            elif kind == _READY:
                raise DatabaseError(said.replace(b"\0", b" ").decode(errors="replace"))
