"""A minimal postgres client, for sessions that are opened before a measurement starts."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import secrets
import socket
import struct
from base64 import b64decode, b64encode
from dataclasses import dataclass
from typing import Final

# 3.0 as postgres sends it: the major version in the upper 16 bits.
_PROTOCOL_3: Final = 196608
_AUTHENTICATION, _ERROR, _READY, _ROW = b"R", b"E", b"Z", b"D"

_METHOD: Final = b"SCRAM-SHA-256"
# Types of authentication requests; ``AuthenticationSASLFinal`` (12) and ``AuthenticationOk`` (0) need no response.
_SASL, _CONTINUE = 10, 11
_NO_BINDING: Final = "biws"
"""``n,,`` in base64: no channel binding."""


@dataclass(frozen=True, slots=True)
class Proof:
    """Client side of SCRAM-SHA-256 (RFC 7677) without channel binding, for one session.

    >>> proof = Proof("pencil", "rOprNGfwEbeRWgbNEkqO", "user")
    >>> first = b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
    >>> proof.answer(struct.pack("!i", 11) + first)[5:]  # the example of RFC 7677
    b'c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ='
    """

    password: str
    nonce: str
    user: str = "postgres"

    def answer(self, request: bytes) -> bytes:
        """The response to the body of an ``R`` message; empty if it needs none."""
        (kind,) = struct.unpack_from("!i", request)
        if kind == _SASL:
            # The header ``n,,`` is not part of the signed text.
            first = f"n,,{self._bare}".encode()
            return _message(_METHOD + b"\0" + struct.pack("!i", len(first)) + first)
        if kind == _CONTINUE:
            return _message(self._final(request[4:].decode()).encode())
        return b""

    @property
    def _bare(self) -> str:
        return f"n={self.user},r={self.nonce}"

    def _final(self, server_first: str) -> str:
        # Split once: base64 may end with equals signs.
        fields = dict(attribute.split("=", 1) for attribute in server_first.split(","))
        salted = hashlib.pbkdf2_hmac("sha256", self.password.encode(), b64decode(fields["s"]), int(fields["i"]))
        key = _hmac(salted, b"Client Key")
        without_proof = f"c={_NO_BINDING},r={fields['r']}"
        signature = _hmac(hashlib.sha256(key).digest(), f"{self._bare},{server_first},{without_proof}".encode())
        proof = bytes(a ^ b for a, b in zip(key, signature, strict=True))
        return f"{without_proof},p={b64encode(proof).decode()}"


def _message(body: bytes) -> bytes:
    # The length includes itself, but not the type byte.
    return b"p" + struct.pack("!i", len(body) + 4) + body


def _hmac(key: bytes, text: bytes) -> bytes:
    return hmac.new(key, text, hashlib.sha256).digest()


class DatabaseError(Exception):
    """The database reported an error, or closed the connection."""


class DatabaseSession:
    """One connection as user ``postgres``."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, password: str) -> None:
        self._reader = reader
        self._writer = writer
        self._proof = Proof(password, secrets.token_urlsafe(18))

    @classmethod
    async def open(cls, host: str, port: int, password: str) -> DatabaseSession:
        """Connect and authenticate. Raises ``DatabaseError`` and ``OSError``."""
        return await cls._start(*await asyncio.open_connection(host, port), password)

    @classmethod
    async def over(cls, connection: socket.socket, password: str) -> DatabaseSession:
        """Authenticate on a connected socket, which the session then owns. Raises ``DatabaseError`` and ``OSError``."""
        return await cls._start(*await asyncio.open_connection(sock=connection), password)

    @classmethod
    async def _start(cls, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, password: str) -> DatabaseSession:
        session = cls(reader, writer, password)
        settings = b"user\0postgres\0database\0postgres\0\0"
        try:
            session._writer.write(struct.pack("!ii", len(settings) + 8, _PROTOCOL_3) + settings)
            await session._until_ready()
        except BaseException:
            # Also on cancellation: nothing else has the connection, and its session would stay open in the database.
            session.close()
            raise
        return session

    def begin(self, query: str) -> None:
        """Send ``query`` without waiting for the result (``finished``)."""
        text = query.encode() + b"\0"
        self._writer.write(b"Q" + struct.pack("!i", len(text) + 4) + text)

    async def finished(self) -> list[list[str]]:
        """Wait for the query sent by ``begin``; return its rows, NULL as an empty text. Raises ``DatabaseError``."""
        return await self._until_ready()

    async def query(self, query: str) -> list[list[str]]:
        """Run ``query``; return its rows as ``finished``. Raises ``DatabaseError``."""
        self.begin(query)
        return await self.finished()

    async def ask(self, query: str) -> str:
        """Run ``query``; return the first column of its last row, empty without rows. Raises ``DatabaseError``."""
        rows = await self.query(query)
        return rows[-1][0] if rows and rows[-1] else ""

    def close(self) -> None:
        """Close the connection."""
        self._writer.close()

    async def _until_ready(self) -> list[list[str]]:
        failure = b""
        rows: list[list[str]] = []
        while True:
            try:
                kind, length = struct.unpack("!ci", await self._reader.readexactly(5))
                body = await self._reader.readexactly(length - 4)
            except (asyncio.IncompleteReadError, OSError) as error:
                raise DatabaseError(f"the database closed the connection: {error}") from None
            if kind == _AUTHENTICATION:
                self._writer.write(self._proof.answer(body))
            elif kind == _ERROR:
                # Raised after ``ReadyForQuery``, when the session is usable again.
                failure = body
            elif kind == _ROW:
                rows.append(_values(body))
            elif kind == _READY and not failure:
                return rows
            elif kind == _READY:
                raise DatabaseError(failure.replace(b"\0", b" ").decode(errors="replace"))


def _values(body: bytes) -> list[str]:
    """The values of a ``DataRow`` in text form.

    >>> _values(struct.pack("!hi2si", 2, 2, b"42", -1))
    ['42', '']
    """
    (count,), at, values = struct.unpack_from("!h", body), 2, []
    for _ in range(count):
        (length,) = struct.unpack_from("!i", body, at)
        at += 4
        # NULL has length -1.
        values.append(body[at : at + max(0, length)].decode())
        at += max(0, length)
    return values
