"""HTTP client of the guest daemon (vm_image/rootfs/daemon.sh); one request per connection."""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

from deploy.neonvm.addressing import DAEMON_PORT, THAW_PORT
from deploy.neonvm.ports import GuestError, GuestSpec, NetworkError, PodSockets
from protocol.runtime.clock import Clock
from protocol.units import MilliCpu, Seconds

Dial = Callable[[], Awaitable[socket.socket]]
"""Opens a non-blocking connection to the daemon; raises ``OSError`` if nothing listens."""

Body = str | Callable[[], str]
"""The text of a request. A callable is called once the connection is open: a waking guest may take a second to accept
it, and a timestamp would be out of date.
"""

_LARGEST_ANSWER: Final = 4096
_STATUS: Final = re.compile(r"[0-9]{3}")


_ASK_SECONDS: Final = 5.0
_SWITCH_SECONDS: Final = 15.0
"""Reading the CPU takes 0.1 s, switching CPUs up to 1.7 s; with eight guests on two cores, ten times as long."""
_READY_SECONDS: Final = 2.0
_PASSWORD_SECONDS: Final = 20.0
"""Longer than the guest's own timeout: an attempt abandoned earlier would continue concurrently with the next one, and
together they would starve an emulated guest.
"""
_THAW_SECONDS: Final = 2.0


@dataclass(frozen=True, slots=True)
class DaemonResponse:
    """Response of the daemon."""

    status: int
    text: str


class GuestDaemon:
    """The daemon of one guest, reached from its pod's network: the private link is not reachable from elsewhere.
    ``last_cpu`` is the CPU last reported, for a paused guest. ``password`` is the database's; a booting guest is ready
    only once it has it.
    """

    def __init__(self, spec: GuestSpec, sockets: PodSockets) -> None:
        self._spec = spec
        self._sockets = sockets
        self.last_cpu = spec.cpu_use
        self.password = ""

    async def is_ready(self) -> bool:
        """Return True if the database is up and has its password; False while the daemon is unreachable."""
        try:
            if self.password:  # a standby needs it for its base backup, and is ready only after that
                await self.send_password()
            return (await self.ask("GET", "/ready", seconds=_READY_SECONDS)).status == 200
        except GuestError:
            return False

    async def send_password(self) -> None:
        """Set the password of the database roles. Raises ``GuestError``."""
        answer = await self.ask("PUT", "/password", self.password, _PASSWORD_SECONDS)
        if answer.status != 200:
            raise GuestError(f"{self._spec.vm}: {answer.text}")

    async def cpu(self) -> MilliCpu:
        """The guest's CPU. Raises ``GuestError``."""
        answer = await self.ask("GET", "/cpu")
        cpu = self._cpu_in(answer) if answer.status == 200 else None
        if cpu is None:
            raise GuestError(f"{self._spec.vm}: the guest reported an invalid CPU: {answer.text}")
        return cpu

    async def switch_cpu(self, use: MilliCpu) -> MilliCpu | None:
        """Set the guest's CPU; return what it then reports, None if it reports nothing. Raises ``GuestError``."""
        answer = await self.ask("PUT", "/cpu", str(use.value), _SWITCH_SECONDS)
        # A booting guest refuses: it was started with the right CPU.
        if answer.status != 200:
            raise GuestError(f"{self._spec.vm}: the guest refused {use} CPU: {answer.text}")
        return self._cpu_in(answer)

    def _cpu_in(self, answer: DaemonResponse) -> MilliCpu | None:
        # `isdigit` alone accepts non-ASCII digits.
        if not (answer.text.isascii() and answer.text.isdigit()):
            return None
        self.last_cpu = MilliCpu(int(answer.text))
        return self.last_cpu

    async def thaw(self, clock: Clock, *, has_stopped: bool = True) -> Seconds | None:
        """Unfreeze the guest's database. If the guest ``has_stopped`` meanwhile, set its clock by ``clock``, which
        restarts its quiet time. Return how late the guest's clock may be at most, None on failure.
        """
        return await self._put_time("/thaw", clock, has_time=has_stopped)

    async def set_clock(self, clock: Clock) -> Seconds | None:
        """Set the guest's clock by ``clock``. Return how late it may be at most, None on failure."""
        return await self._put_time("/clock", clock)

    async def _put_time(self, path: str, clock: Clock, *, has_time: bool = True) -> Seconds | None:
        sent = clock.now()

        def present() -> str:
            nonlocal sent
            sent = clock.now()
            return f"{clock.wall():.9f}" if has_time else ""

        try:
            answer = await self.ask("PUT", path, present, _THAW_SECONDS, THAW_PORT)
        except GuestError:
            return None
        return Seconds(clock.now() - sent) if answer.status == 200 else None

    async def ask(
        self, method: str, path: str, body: Body = "", seconds: float = _ASK_SECONDS, port: int = DAEMON_PORT
    ) -> DaemonResponse:
        """One request. Raises ``GuestError``."""
        try:
            return await ask(partial(self._dial, port), method, self._spec.network.daemon_path(path), body, seconds)
        except NetworkError as error:
            raise GuestError(f"{self._spec.vm}: {error}") from error

    async def _dial(self, port: int) -> socket.socket:
        return await self._sockets.connect(self._spec.pod, self._spec.network.guest_host, port)


async def ask(dial: Dial, method: str, path: str, body: Body, seconds: float) -> DaemonResponse:
    """One request. Raises ``GuestError`` if there is no valid response within ``seconds``."""
    try:
        async with asyncio.timeout(seconds):
            connection = await dial()
            text = body if isinstance(body, str) else body()
            return _parsed(await exchange(connection, _request(method, path, text), _LARGEST_ANSWER))
    except TimeoutError as error:
        raise GuestError(f"no response from the guest to {method} {path} within {seconds:g} s") from error
    except OSError as error:
        raise GuestError(f"cannot connect to the guest for {method} {path}: {error}") from error


async def exchange(connection: socket.socket, request: bytes, largest: int) -> bytes:
    """Send ``request`` and return what the guest sends until it closes the connection, at most ``2 * largest`` bytes:
    it is not trusted. Raises ``OSError``.
    """
    reader, writer = await asyncio.open_connection(sock=connection)
    try:
        writer.write(request)
        await writer.drain()
        answer = bytearray()
        while len(answer) < largest and (part := await reader.read(largest)):
            answer += part
        return bytes(answer)
    finally:
        writer.close()


def _request(method: str, path: str, body: str) -> bytes:
    head = (
        # The daemon closes the connection at the end of its response.
        f"{method} {path} HTTP/1.1\r\nHost: guest\r\nContent-Length: {len(body.encode())}\r\nConnection: close\r\n\r\n"
    )
    return (head + body).encode()


def _parsed(answer: bytes) -> DaemonResponse:
    head, _, text = answer.decode(errors="replace").partition("\r\n\r\n")
    words = head.split(maxsplit=2)
    # The guest is not trusted: non-ASCII digits, or more digits than `int` accepts.
    if len(words) < 2 or not words[0].startswith("HTTP/") or not _STATUS.fullmatch(words[1]):
        raise GuestError(f"invalid response from the guest daemon: {head[:80]!r}")
    return DaemonResponse(int(words[1]), text.strip())
