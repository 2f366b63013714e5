"""QEMU's monitor: every call has a time-out, and every failure is a ``GuestError`` that says what was asked.

The connection is one end of a socket pair that QEMU inherits, so there is no path that can be too long, stale, or
open to others.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Mapping
from typing import Final

from qemu.qmp import QMPClient, QMPError

from deploy.local.ports import GuestError

_CALL_SECONDS: Final = 10.0
"""An emulated guest under full load answers its monitor within a second or two; this is a hang."""


class Monitor:
    """One QMP connection. ``who`` names the machine in errors."""

    def __init__(self, who: str) -> None:
        self._who = who
        self._client = QMPClient(who)

    async def connect(self, end: socket.socket) -> None:
        """Greets the QEMU at the other end. Raises ``GuestError``."""
        try:
            async with asyncio.timeout(_CALL_SECONDS):
                await self._client.connect(end)
        except (QMPError, OSError, EOFError, TimeoutError) as error:
            raise GuestError(f"{self._who}: QEMU did not open its monitor: {_said(error)}") from error

    async def call(self, command: str, arguments: Mapping[str, object] | None = None) -> object:
        """Runs one command and returns its result. Raises ``GuestError``."""
        try:
            async with asyncio.timeout(_CALL_SECONDS):
                return await self._client.execute(command, dict(arguments or {}))
        except TimeoutError as error:
            raise GuestError(f"{self._who}: QEMU did not answer {command} within {_CALL_SECONDS:.0f} s") from error
        except (QMPError, OSError, EOFError) as error:
            raise GuestError(f"{self._who}: QEMU refused {command}: {_said(error)}") from error

    async def close(self) -> None:
        """Hangs up; QEMU may already be gone."""
        try:
            async with asyncio.timeout(_CALL_SECONDS):
                await self._client.disconnect()
        except (QMPError, OSError, EOFError, TimeoutError):
            return  # nothing is left to hang up on


def _said(error: BaseException) -> str:
    return str(error) or type(error).__name__
