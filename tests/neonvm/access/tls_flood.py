"""A TLS 1.3 server that sends what OpenSSL's servers never do: thousands of session tickets, many in each record."""

from __future__ import annotations

import asyncio
import socket
import ssl
import struct
from pathlib import Path

from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA384
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand

_HANDSHAKE, _DATA = b"\x16", b"\x17"
_TICKET = b"\x04\x00\x00\x0f" + struct.pack("!II", 7200, 0) + b"\x01\x00" + b"\x00\x01x" + b"\x00\x00"


class _Records:
    """The records of one direction, encrypted with AES-256-GCM."""

    def __init__(self, secret: bytes) -> None:
        self._key = AESGCM(_derived(secret, b"key", 32))
        self._iv = int.from_bytes(_derived(secret, b"iv", 12), "big")
        self._count = 0

    def sealed(self, content: bytes, kind: bytes) -> bytes:
        head = b"\x17\x03\x03" + struct.pack("!H", len(content) + 17)
        nonce = (self._iv ^ self._count).to_bytes(12, "big")
        self._count += 1
        return head + self._key.encrypt(nonce, content + kind, head)


def _derived(secret: bytes, label: bytes, length: int) -> bytes:
    name = b"tls13 " + label
    return HKDFExpand(SHA384(), length, struct.pack("!HB", length, len(name)) + name + b"\0").derive(secret)


async def flood(listener: socket.socket, context: ssl.SSLContext, folder: Path, size: int) -> None:
    """Accept one connection; after the handshake send about ``size`` bytes of tickets, then ``x``, and hang up."""
    loop = asyncio.get_running_loop()
    client, _ = await loop.sock_accept(listener)
    context.keylog_filename = str(folder / "keys")
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = context.wrap_bio(incoming, outgoing, server_side=True)
    with client:
        while True:
            try:
                tls.do_handshake()
                break
            except ssl.SSLWantReadError:
                await loop.sock_sendall(client, outgoing.read())
                incoming.write(await loop.sock_recv(client, 1 << 16))
        await loop.sock_sendall(client, outgoing.read())
        keys = dict(line.split(maxsplit=1) for line in (folder / "keys").read_text().splitlines())
        records = _Records(bytes.fromhex(keys["SERVER_TRAFFIC_SECRET_0"].split()[1]))
        tickets = _TICKET * 800
        for _ in range(size // len(tickets)):
            await loop.sock_sendall(client, records.sealed(tickets, _HANDSHAKE))
        await loop.sock_sendall(client, records.sealed(b"x", _DATA))
