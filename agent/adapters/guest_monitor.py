"""WebSocket client of the guest's monitor (B.8).

The guest is not trusted: its frames are limited in size and number, sending has a deadline, and redirects fail.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, WebSocketException
from websockets.frames import CloseCode
from websockets.protocol import Event

from agent import texts
from agent.core.events import Fault
from agent.core.monitor.monitor_side import printable
from agent.core.monitor.token_bucket import TokenBucket
from agent.ports import PortError
from protocol.guest.monitor_messages import (
    LARGEST_MONITOR_MESSAGE,
    FromMonitor,
    MalformedMonitorMessageError,
    ToMonitor,
    read_from_monitor,
    read_greeting,
    write_greeting,
    write_to_monitor,
)
from protocol.units import Instant, Seconds

MAX_QUEUED = 8
"""Maximum queued messages; beyond that, reading from the network pauses."""

MAX_UNSENT = 64 * 1024
"""Maximum bytes of unsent pongs; beyond that, the connection is closed."""

SLICE = 1024
"""Bytes parsed between two checks of the frame rate. The shortest frame has two bytes."""

MAX_FRAMES = 1000.0
FRAMES_PER_SECOND = 200.0
"""Burst and rate limit of frames and reads per guest: each costs CPU of the node's agent, and the session's limit does
not count pings, pongs and empty fragments.
"""

ANSWER_TIMEOUT = Seconds(5.0)
"""Timeout of an answer, for which the monitor may query its database."""

CLOSE_TIMEOUT = Seconds(0.5)
"""Timeout of the closing handshake."""


class GuestMonitor:
    """One guest's monitor at ``url`` (``ws://…``)."""

    def __init__(self, url: str, deadline: Seconds) -> None:
        self._url = url
        self._deadline = deadline

    @asynccontextmanager
    async def connect(self) -> AsyncIterator[GuestConnection]:
        """See ``MonitorSource``."""
        connecting = _NoRedirects(
            self._url,
            # A small compressed message could decompress to any size.
            compression=None,
            # Ignore proxies from the environment.
            proxy=None,
            user_agent_header=None,
            open_timeout=self._deadline,
            # The session's health checks detect a dead connection.
            ping_interval=None,
            max_size=LARGEST_MONITOR_MESSAGE,
            max_queue=MAX_QUEUED,
            create_connection=_RateLimited,
        )
        try:
            socket = await connecting
            async with _closing(socket):
                yield await self._greeted(socket)
        # Something responds, but it is not a monitor: the guest's fault.
        except InvalidHandshake as error:
            raise PortError(Fault.GUEST, printable(texts.MONITOR_FAILED.format(url=self._url, error=error))) from None
        # Most likely a guest without a monitor, which is not a failure. It looks like a network fault.
        except (OSError, TimeoutError, WebSocketException) as error:
            reason = texts.MONITOR_UNREACHABLE.format(url=self._url, kind=type(error).__name__)
            raise PortError(Fault.NETWORK, reason) from None

    async def _greeted(self, socket: ClientConnection) -> GuestConnection:
        connection = GuestConnection(socket, self._deadline)
        await connection.write(write_greeting())
        try:
            async with asyncio.timeout(self._deadline):
                connection.version = read_greeting(await connection.text())
        except MalformedMonitorMessageError as error:
            raise PortError(Fault.GUEST, texts.MONITOR_GREETING_MALFORMED.format(error=error)) from None
        except TimeoutError:
            reason = texts.MONITOR_GREETING_TIMED_OUT.format(seconds=self._deadline)
            raise PortError(Fault.GUEST, reason) from None
        return connection


@asynccontextmanager
async def _closing(socket: ClientConnection) -> AsyncIterator[None]:
    """Close ``socket`` after the block, without waiting for a guest that does not read."""
    try:
        yield
    finally:
        # The closing handshake waits for the peer, so abort it after a timeout.
        closing = asyncio.ensure_future(socket.close())
        try:
            await asyncio.wait((closing,), timeout=CLOSE_TIMEOUT)
        finally:
            socket.transport.abort()
            closing.cancel()


class _RateLimited(ClientConnection):
    """A connection with limits on frames and on unsent pongs, which the library lacks."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See ``asyncio.Protocol``."""
        self._frames = 0
        self._allowed = TokenBucket(MAX_FRAMES, FRAMES_PER_SECOND, Instant(self.loop.time()))
        super().connection_made(transport)

    def data_received(self, data: bytes) -> None:
        """See ``asyncio.Protocol``."""
        self._frames += 1
        # The library parses all of ``data`` at once; small slices let the rate limit act early.
        for at in range(0, len(data), SLICE):
            super().data_received(data[at : at + SLICE])
            read, self._frames = self._frames, 0
            if not self._allowed.take(read, Instant(self.loop.time())):
                self._abort(texts.TOO_MANY_FRAMES)
            # The library answers every ping, and buffers pongs for a guest that does not read.
            elif self.transport.get_write_buffer_size() > MAX_UNSENT:
                self._abort(texts.TOO_MANY_PONGS)
            if self.transport.is_closing():
                return

    def process_event(self, event: Event) -> None:
        """Count the frame."""
        self._frames += 1
        super().process_event(event)

    def _abort(self, why: str) -> None:
        self.protocol.fail(CloseCode.POLICY_VIOLATION, why)
        self.send_data()
        self.transport.abort()


class _NoRedirects(connect):
    """A connection that refuses redirects."""

    def process_redirect(self, exc: Exception) -> Exception | str:
        """Fail instead of following the redirect."""
        return exc


class GuestConnection:
    """See ``MonitorConnection``."""

    def __init__(self, socket: ClientConnection, deadline: Seconds) -> None:
        self.version = 1
        self.answer_timeout = ANSWER_TIMEOUT
        self._socket = socket
        self._deadline = deadline

    async def text(self) -> str | bytes:
        """The next message, undecoded. Raises ``PortError``."""
        try:
            return await self._socket.recv()
        except ConnectionClosed as error:
            raise _ended(error) from None

    async def receive(self) -> FromMonitor:
        """See ``MonitorConnection``."""
        text = await self.text()
        try:
            return read_from_monitor(text)
        except MalformedMonitorMessageError as error:
            raise PortError(Fault.GUEST, texts.MONITOR_MALFORMED.format(error=error)) from None

    async def send(self, message: ToMonitor, number: int) -> None:
        """See ``MonitorConnection``."""
        await self.write(write_to_monitor(message, number))

    async def write(self, text: str) -> None:
        """Send a text frame. Raises ``PortError``."""
        try:
            async with asyncio.timeout(self._deadline):
                await self._socket.send(text)
        except ConnectionClosed as error:
            raise _ended(error) from None
        except TimeoutError:
            raise PortError(Fault.GUEST, texts.MONITOR_SEND_TIMED_OUT.format(seconds=self._deadline)) from None


def _ended(error: ConnectionClosed) -> PortError:
    """The error for a closed connection, with the reason from the close frame."""
    # The side that closes first sends the reason (ours if a message was too large), and the other echoes it.
    frame = error.sent if error.sent is not None and not error.rcvd_then_sent else error.rcvd
    why = "" if frame is None else printable(f" ({frame.code} {frame.reason})")
    return PortError(Fault.GUEST, texts.MONITOR_ENDED.format(why=why))
