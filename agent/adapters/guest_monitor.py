"""The monitor in the guest over a WebSocket (B.8).

A guest is not trusted: its messages and other frames are bounded in size and number, sending to it has a deadline, and
its redirects are never followed.
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
from agent.ports import MonitorConnection, PortError
from protocol.guest.monitor_messages import (
    LARGEST_MONITOR_MESSAGE,
    FromMonitor,
    MalformedMonitorMessageError,
    read_from_monitor,
    read_greeting,
    write_greeting,
)
from protocol.units import Instant, Seconds

UNREAD = 8
"""Messages that may wait in memory; beyond that, no more are read from the network."""

UNSENT = 64 * 1024
"""Bytes of pongs that may wait for a guest to read them; beyond that, the connection is closed."""

SLICE = 1024
"""Bytes parsed between two checks of the number of frames. The shortest frame has two."""

MOST_FRAMES = 1000.0
FRAMES_PER_SECOND = 200.0
"""Frames and pieces from the network that a guest may send: at once, and in the long run. Each takes time from the
agent of the whole node, and the session's limit does not count pings, pongs and empty fragments."""

PATIENCE = Seconds(5.0)
"""Time for an answer: the monitor asks its database at most."""

POLITE = Seconds(0.5)
"""Time for the closing handshake."""


class GuestMonitor:
    """One guest's monitor at ``url`` (``ws://…``)."""

    def __init__(self, url: str, deadline: Seconds) -> None:
        self._url = url
        self._deadline = deadline

    @asynccontextmanager
    async def connect(self) -> AsyncIterator[MonitorConnection]:
        """See ``MonitorSource``."""
        connecting = _Direct(
            self._url,
            # A small compressed message could unpack to anything.
            compression=None,
            # A proxy from the environment must not come between an agent and its guest.
            proxy=None,
            user_agent_header=None,
            open_timeout=self._deadline,
            # The session's health checks find a dead connection.
            ping_interval=None,
            max_size=LARGEST_MONITOR_MESSAGE,
            max_queue=UNREAD,
            create_connection=_Bounded,
        )
        try:
            socket = await connecting
            async with _ending(socket):
                yield await self._greeted(socket)
        # Something answers there, but with nonsense: the fault of the guest.
        except InvalidHandshake as error:
            raise PortError(Fault.GUEST, printable(texts.MONITOR_FAILED.format(url=self._url, error=error))) from None
        # Most likely a guest without a monitor; that looks like a fault of the network, and is no trouble.
        except (OSError, TimeoutError, WebSocketException) as error:
            reason = texts.MONITOR_UNREACHABLE.format(url=self._url, kind=type(error).__name__)
            raise PortError(Fault.NETWORK, reason) from None

    async def _greeted(self, socket: ClientConnection) -> MonitorConnection:
        connection = _Connection(socket, self._deadline)
        await connection.send(write_greeting())
        try:
            async with asyncio.timeout(self._deadline):
                connection.version = read_greeting(await connection.text())
        except MalformedMonitorMessageError as error:
            raise PortError(Fault.GUEST, texts.MONITOR_GREETS_BADLY.format(error=error)) from None
        except TimeoutError:
            reason = texts.MONITOR_DID_NOT_GREET.format(seconds=self._deadline)
            raise PortError(Fault.GUEST, reason) from None
        return connection


@asynccontextmanager
async def _ending(socket: ClientConnection) -> AsyncIterator[None]:
    """Closes ``socket`` after the block. A guest that does not read would hold up a polite end for ever."""
    try:
        yield
    finally:
        # The closing handshake waits for the peer, so it runs beside the time-out and is aborted after it.
        closing = asyncio.ensure_future(socket.close())
        try:
            await asyncio.wait((closing,), timeout=POLITE)
        finally:
            socket.transport.abort()
            closing.cancel()


class _Bounded(ClientConnection):
    """A connection that ends a flood of frames, and a pile of unread pongs: the library bounds neither."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See ``asyncio.Protocol``."""
        self._frames = 0
        self._allowed = TokenBucket(MOST_FRAMES, FRAMES_PER_SECOND, Instant(self.loop.time()))
        super().connection_made(transport)

    def data_received(self, data: bytes) -> None:
        """See ``asyncio.Protocol``."""
        self._frames += 1
        # The library parses at once all that it gets; small slices let the bucket stop a flood early.
        for at in range(0, len(data), SLICE):
            super().data_received(data[at : at + SLICE])
            read, self._frames = self._frames, 0
            if not self._allowed.take(read, Instant(self.loop.time())):
                self._give_up(texts.TOO_MANY_FRAMES)
            # The library answers each ping, and buffers the pongs of a guest that does not read.
            elif self.transport.get_write_buffer_size() > UNSENT:
                self._give_up(texts.PINGS_NOT_READ)
            if self.transport.is_closing():
                return

    def process_event(self, event: Event) -> None:
        """Count the frame."""
        self._frames += 1
        super().process_event(event)

    def _give_up(self, why: str) -> None:
        self.protocol.fail(CloseCode.POLICY_VIOLATION, why)
        self.send_data()
        self.transport.abort()


class _Direct(connect):
    """A connection to where the settings say, and nowhere else."""

    def process_redirect(self, exc: Exception) -> Exception | str:
        """A redirection is a failure."""
        return exc


class _Connection:
    """See ``MonitorConnection``."""

    def __init__(self, socket: ClientConnection, deadline: Seconds) -> None:
        self.version = 1
        self.patience = PATIENCE
        self._socket = socket
        self._deadline = deadline

    async def text(self) -> str | bytes:
        """The next message as it came. Raises ``PortError``."""
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

    async def send(self, text: str) -> None:
        """See ``MonitorConnection``."""
        try:
            async with asyncio.timeout(self._deadline):
                await self._socket.send(text)
        except ConnectionClosed as error:
            raise _ended(error) from None
        except TimeoutError:
            raise PortError(Fault.GUEST, texts.MONITOR_DID_NOT_READ.format(seconds=self._deadline)) from None


def _ended(error: ConnectionClosed) -> PortError:
    """The error of an ended conversation, with the reason in the close frame: ours if the message was too large."""
    # The side that closed first says why; the other frame only echoes it.
    frame = error.sent if error.sent is not None and not error.rcvd_then_sent else error.rcvd
    why = "" if frame is None else printable(f" ({frame.code} {frame.reason})")
    return PortError(Fault.GUEST, texts.MONITOR_ENDED.format(why=why))
