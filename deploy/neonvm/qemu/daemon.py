"""Talks to the small daemon in the guest (vm_image/rootfs/daemon.sh): one request on one connection."""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from deploy.neonvm.addressing import DAEMON_PORT
from deploy.neonvm.ports import GuestError, GuestSpec, NetworkError, PodSockets
from protocol.units import MilliCpu

Dial = Callable[[], Awaitable[socket.socket]]
"""Opens a non-blocking connection to the daemon; raises ``OSError`` if nothing listens."""

_LARGEST_ANSWER: Final = 4096
_STATUS: Final = re.compile(r"[0-9]{3}")


_ASK_SECONDS: Final = 5.0
_SWITCH_SECONDS: Final = 15.0
"""An answer about the CPU takes 0.1 s, switching CPUs up to 1.7 s; eight guests on two cores are ten times slower."""
_READY_SECONDS: Final = 2.0


@dataclass(frozen=True, slots=True)
class DaemonResponse:
    """Response of the daemon."""

    status: int
    text: str


class GuestDaemon:
    """The daemon of one guest, asked from inside its pod: the private link is not reachable from elsewhere.
    ``last_cpu`` is what it reported last, for when the guest stands still and cannot be asked. ``password`` is the
    database's; a guest that boots is ready once it has it.
    """

    def __init__(self, spec: GuestSpec, sockets: PodSockets) -> None:
        self._spec = spec
        self._sockets = sockets
        self.last_cpu = spec.cpu_use
        self.password = ""

    async def is_ready(self) -> bool:
        """Return True if the database is up and has its password. An unreachable daemon is what booting looks like."""
        try:
            if self.password:  # a standby needs it to copy its primary, and is ready only then
                await self.send_password()
            return (await self.ask("GET", "/ready", seconds=_READY_SECONDS)).status == 200
        except GuestError:
            return False

    async def send_password(self) -> None:
        """Sets the password of the database's accounts. Raises ``GuestError``."""
        answer = await self.ask("PUT", "/password", self.password)
        if answer.status != 200:
            raise GuestError(f"{self._spec.vm}: {answer.text}")

    async def cpu(self) -> MilliCpu:
        """The CPU that the guest has. Raises ``GuestError``."""
        answer = await self.ask("GET", "/cpu")
        cpu = self._cpu_in(answer) if answer.status == 200 else None
        if cpu is None:
            raise GuestError(f"{self._spec.vm}: the guest cannot say its CPU: {answer.text}")
        return cpu

    async def switch_cpu(self, use: MilliCpu) -> MilliCpu | None:
        """Has the guest use this much CPU; returns what it then reports, if it does. Raises ``GuestError``."""
        answer = await self.ask("PUT", "/cpu", str(use.value), _SWITCH_SECONDS)
        # A booting guest refuses: it was started with exactly what it may use.
        if answer.status != 200:
            raise GuestError(f"{self._spec.vm}: the guest refused {use} CPU: {answer.text}")
        return self._cpu_in(answer)

    def _cpu_in(self, answer: DaemonResponse) -> MilliCpu | None:
        # `isdigit` alone accepts digits of other scripts.
        if not (answer.text.isascii() and answer.text.isdigit()):
            return None
        self.last_cpu = MilliCpu(int(answer.text))
        return self.last_cpu

    async def ask(self, method: str, path: str, body: str = "", seconds: float = _ASK_SECONDS) -> DaemonResponse:
        """One request. Raises ``GuestError``."""
        try:
            return await ask(self._dial, method, self._spec.network.asked(path), body, seconds)
        except NetworkError as error:
            raise GuestError(f"{self._spec.vm}: {error}") from error

    async def _dial(self) -> socket.socket:
        return await self._sockets.connect(self._spec.pod, self._spec.network.guest_host, DAEMON_PORT)


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
