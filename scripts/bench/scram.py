"""How a client of postgres proves its password: SCRAM-SHA-256 (RFC 7677) without channel binding (pure)."""

from __future__ import annotations

import hashlib
import hmac
import struct
from base64 import b64decode, b64encode
from dataclasses import dataclass
from typing import Final

_METHOD: Final = b"SCRAM-SHA-256"
_SASL, _CONTINUE = 10, 11
_NO_BINDING: Final = "biws"
"""``n,,`` in base64: neither side binds to a TLS channel."""


@dataclass(frozen=True, slots=True)
class Proof:
    """The answers of one session to the server's requests for authentication.

    >>> proof = Proof("pencil", "rOprNGfwEbeRWgbNEkqO", "user")
    >>> first = b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
    >>> proof.answer(struct.pack("!i", 11) + first)[5:]  # the example of RFC 7677
    b'c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ='
    """

    password: str
    nonce: str
    user: str = "postgres"

    def answer(self, request: bytes) -> bytes:
        """The message that answers the body of an ``R`` message; empty if it asks for nothing."""
        (kind,) = struct.unpack_from("!i", request)
        if kind == _SASL:
            first = f"n,,{self._bare}".encode()
            return _message(_METHOD + b"\0" + struct.pack("!i", len(first)) + first)
        if kind == _CONTINUE:
            return _message(self._final(request[4:].decode()).encode())
        return b""

    @property
    def _bare(self) -> str:
        return f"n={self.user},r={self.nonce}"

    def _final(self, server_first: str) -> str:
        fields = dict(each.split("=", 1) for each in server_first.split(","))
        salted = hashlib.pbkdf2_hmac("sha256", self.password.encode(), b64decode(fields["s"]), int(fields["i"]))
        key = _hmac(salted, b"Client Key")
        without_proof = f"c={_NO_BINDING},r={fields['r']}"
        signed = _hmac(hashlib.sha256(key).digest(), f"{self._bare},{server_first},{without_proof}".encode())
        proof = bytes(a ^ b for a, b in zip(key, signed, strict=True))
        return f"{without_proof},p={b64encode(proof).decode()}"


def _message(body: bytes) -> bytes:
    return b"p" + struct.pack("!i", len(body) + 4) + body


def _hmac(key: bytes, text: bytes) -> bytes:
    return hmac.new(key, text, hashlib.sha256).digest()
