"""The original's vm-monitor, as far as its agent needs one: it is notified of growth and approves every shrink.

Only what the agent's client uses of WebSocket is here: text frames that are not split. An agent's messages have their
content in a field of that name, a monitor's have it beside their type and id.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import struct
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

_MAGIC: Final = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
_TEXT: Final = 1
_CLOSE: Final = 8
_ANSWERS: Final[dict[str, tuple[str, dict[str, Any]]]] = {
    "UpscaleNotification": ("UpscaleConfirmation", {}),
    "DownscaleRequest": ("DownscaleResult", {"Ok": True, "Status": "fine"}),
    "HealthCheck": ("HealthCheck", {}),
}


@dataclass(slots=True)
class GuestMonitor:
    """Answers an agent. ``heard`` are the types of its messages."""

    heard: list[str] = field(default_factory=list)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection of an agent."""
        with suppress(OSError, asyncio.IncompleteReadError):
            await self._shake_hands(reader, writer)
            await self._read(reader)  # the versions that the agent speaks
            self._say(writer, {"version": 1})
            while (message := await self._read(reader)) is not None:
                kind = message["type"]
                self.heard.append(kind)
                if kind in _ANSWERS:
                    answer, content = _ANSWERS[kind]
                    self._say(writer, {**content, "type": answer, "id": message["id"]})
        writer.close()

    @staticmethod
    async def _shake_hands(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        lines = [line.partition(b":") for line in head.split(b"\r\n")]
        (key,) = [value.strip() for name, _, value in lines if name.lower() == b"sec-websocket-key"]
        accept = base64.b64encode(hashlib.sha1(key + _MAGIC, usedforsecurity=False).digest())
        writer.write(
            b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            b"Sec-WebSocket-Accept: " + accept + b"\r\n\r\n"
        )

    @staticmethod
    async def _read(reader: asyncio.StreamReader) -> Any:
        """The next message; None once the agent says goodbye."""
        while True:
            first, second = await reader.readexactly(2)
            length = second & 0x7F
            if length == 126:
                (length,) = struct.unpack("!H", await reader.readexactly(2))
            mask = await reader.readexactly(4)
            body = bytes(byte ^ mask[at % 4] for at, byte in enumerate(await reader.readexactly(length)))
            if first & 0xF == _CLOSE:
                return None
            if first & 0xF == _TEXT:
                return json.loads(body)

    @staticmethod
    def _say(writer: asyncio.StreamWriter, message: object) -> None:
        body = json.dumps(message).encode()
        assert len(body) < 126
        writer.write(bytes([0x80 | _TEXT, len(body)]) + body)
