"""A session with postgres over one connection, in its own protocol: whether it survives is what is tested."""

from __future__ import annotations

import secrets
import struct
import time
from typing import Any, Final

from deploy.neonvm.network.netns import socket_in
from protocol.names import PASSWORD_KEY, PASSWORD_SUFFIX
from scripts.database_client import Proof

PATIENCE: Final = 30.0
PASSWORD: Final = "of these tests"


def password_of(vm: str) -> dict[str, Any]:
    """The Secret with the password of the VM's database, or of a group's."""
    metadata = {"name": f"{vm}{PASSWORD_SUFFIX}", "namespace": "default"}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "stringData": {PASSWORD_KEY: PASSWORD}}


class Session:
    """One session from within ``namespace``. ``longest`` is the longest wait for an answer, in seconds; ``patience`` is
    how long it waits for one.
    """

    def __init__(self, namespace: str, address: str, patience: float = PATIENCE) -> None:
        self.namespace = namespace
        self._proof = Proof(PASSWORD, secrets.token_urlsafe(18))
        self._socket = socket_in(namespace)
        self._socket.settimeout(patience)
        self._socket.connect((address, 5432))
        words = b"user\0postgres\0database\0postgres\0\0"
        self._socket.sendall(struct.pack("!ii", len(words) + 8, 3 << 16) + words)
        self._until_ready()
        self.longest = 0.0

    def ask(self, query: str) -> str:
        """The only field of the only row. Raises ``OSError`` where the session is lost."""
        began = time.monotonic()
        text = query.encode() + b"\0"
        self._socket.sendall(b"Q" + struct.pack("!i", len(text) + 4) + text)
        answer = self._until_ready()
        self.longest = max(self.longest, time.monotonic() - began)
        return answer

    def close(self) -> None:
        """Hangs up."""
        self._socket.close()

    def _until_ready(self) -> str:
        found = ""
        while True:
            kind, length = struct.unpack("!ci", self._read(5))
            body = self._read(length - 4)
            if kind == b"R":
                self._socket.sendall(self._proof.answer(body))
            elif kind == b"D":
                (size,) = struct.unpack("!i", body[2:6])
                found = body[6 : 6 + size].decode()
            elif kind == b"E":
                raise OSError(body.decode(errors="replace"))
            elif kind == b"Z":
                return found

    def _read(self, length: int) -> bytes:
        read = b""
        while len(read) < length:
            part = self._socket.recv(length - len(read))
            if not part:
                raise OSError("the session is lost")
            read += part
        return read
