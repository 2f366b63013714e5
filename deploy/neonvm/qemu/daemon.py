"""Talks to the small daemon in the guest (vm_image/rootfs/daemon.sh): one request on one connection.

It is plain HTTP with the length in a header, on a socket that may live in another network namespace.
"""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from deploy.neonvm.ports import GuestError

Dial = Callable[[], Awaitable[socket.socket]]
"""Opens a non-blocking connection to the daemon; raises ``OSError`` if nothing listens."""

_LARGEST_ANSWER: Final = 4096
_STATUS: Final = re.compile(r"[0-9]{3}")


@dataclass(frozen=True, slots=True)
class DaemonResponse:
    """Response of the daemon."""

    status: int
    text: str


async def ask(dial: Dial, method: str, path: str, body: str, seconds: float) -> DaemonResponse:
    """One request. Raises ``GuestError`` if there is no proper answer within ``seconds``."""
    try:
        async with asyncio.timeout(seconds):
            return _parsed(await _exchange(await dial(), _request(method, path, body)))
    except TimeoutError as error:
        raise GuestError(f"the guest did not answer {method} {path} within {seconds:g} s") from error
    except OSError as error:
        raise GuestError(f"the guest cannot be reached for {method} {path}: {error}") from error


async def _exchange(connection: socket.socket, request: bytes) -> bytes:
    reader, writer = await asyncio.open_connection(sock=connection)
    try:
        writer.write(request)
        await writer.drain()
        answer = b""
        # The guest is not trusted: an answer without end must not fill the memory.
        while len(answer) < _LARGEST_ANSWER and (part := await reader.read(_LARGEST_ANSWER)):
            answer += part
        return answer
    finally:
        writer.close()


def _request(method: str, path: str, body: str) -> bytes:
    head = (
        # The daemon closes after each answer, which is how its end is found.
        f"{method} {path} HTTP/1.1\r\nHost: guest\r\nContent-Length: {len(body.encode())}\r\nConnection: close\r\n\r\n"
    )
    return (head + body).encode()


def _parsed(answer: bytes) -> DaemonResponse:
    head, _, text = answer.decode(errors="replace").partition("\r\n\r\n")
    words = head.split(maxsplit=2)
    # A guest may answer anything: other digits than ours, or more of them than `int` takes.
    if len(words) < 2 or not words[0].startswith("HTTP/") or not _STATUS.fullmatch(words[1]):
        raise GuestError(f"the guest's daemon gave no usable answer: {head[:80]!r}")
    return DaemonResponse(int(words[1]), text.strip())
