"""A client's HTTP/1.1 connection: one request at a time, with responses as they arrive.

- httptools parses responses. A malformed or incomplete response raises ``BrokenConnectionError``.
- Interim responses (1xx) are skipped: they say nothing about the outcome, and the response follows.
- A broken connection, or one with an abandoned response, is never reused.
"""

from __future__ import annotations

import asyncio
from asyncio.trsock import TransportSocket
from collections import deque
from dataclasses import dataclass
from math import inf
from typing import Final, cast

import httptools

# Bytes of unread body after which we stop reading, for back-pressure on a fast peer.
MAX_UNREAD: Final = 1024 * 1024
# Bytes outside of a body: the parser buffers heads and trailers, so they need their own limit.
MAX_OUTSIDE_BODY: Final = 64 * 1024
MAX_HEADERS: Final = 200
# A response that is read as a whole may arrive in ``FEW_PIECES`` pieces, plus one for every ``LEAST_PIECE`` bytes of
# its maximum size, because each piece costs time.
LEAST_PIECE: Final = 64
FEW_PIECES: Final = 64
# Merge a piece up to this size into the previous one: a separate object would take up to twice the memory.
_SMALL: Final = 4096
_RETRY_AFTER: Final = b"retry-after"
FRAMES: Final = frozenset({b"content-length", b"transfer-encoding"})
"""The headers that define the end of a body, in lower case; without them it ends with the connection."""
_LENGTHS_OF_FRAMES: Final = frozenset(map(len, FRAMES))
_SWITCHING_PROTOCOLS: Final = 101
_UNASKED: Final = "unsolicited data from the server"


class BrokenConnectionError(Exception):
    """The connection ended, or the response is not HTTP; the request may have been processed."""


class LongAnswerError(Exception):
    """The response is larger than the caller allows."""


@dataclass(slots=True)
class ResponseHead:
    """The head of a response; ``status`` is 0 until it has arrived. ``extra`` is the value of the extra header."""

    status: int = 0
    retry_after: str = ""
    extra: str = ""

    @property
    def is_success(self) -> bool:
        """True for a 2xx status."""
        return 200 <= self.status < 300


class HttpConnection(asyncio.Protocol):
    """A connection for one request at a time. ``extra_header`` (lower case) is also read from responses."""

    def __init__(self, extra_header: bytes = b"") -> None:
        self._extra_header = extra_header
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._answer = ResponseHead()
        self._headers = 0
        self._outside_body = 0
        self._is_framed = False
        self._pieces: deque[bytes | bytearray] = deque()
        self._unread = 0
        self._pieces_left: float = inf
        self._is_whole = True
        self._has_lasted = True
        self._wakes_beyond = -1
        self._broken = ""
        self._waiter: asyncio.Future[None] | None = None

    @property
    def is_reusable(self) -> bool:
        """True if another request can follow."""
        return self._is_whole and self._has_lasted and not self._broken and not self._pieces

    @property
    def socket(self) -> TransportSocket:
        """The underlying socket. Raises ``BrokenConnectionError`` before the connection is established."""
        if self._transport is None:
            raise BrokenConnectionError("there is no connection yet")
        socket: TransportSocket = self._transport.get_extra_info("socket")
        return socket

    async def exchange(self, request: bytes, deadline: float, longest: int) -> tuple[ResponseHead, bytes]:
        """Send a request and return its whole response.

        ``deadline`` is a time of the event loop, ``longest`` is in bytes. Raises ``BrokenConnectionError``,
        ``LongAnswerError`` and ``TimeoutError``.
        """
        self._send(request, min(longest, MAX_UNREAD), FEW_PIECES + longest // LEAST_PIECE)
        pieces: list[bytes | bytearray] = []
        size = 0
        while True:
            pieces += self._pieces
            size += self._unread
            self._pieces.clear()
            self._count(-self._unread)
            if size > longest:
                raise LongAnswerError
            # Check only after taking the pieces: the end may have arrived with the last of them.
            if self._is_whole:
                return self._answer, bytes(pieces[0]) if len(pieces) == 1 else b"".join(pieces)
            await self._progress(deadline)

    async def ask(self, request: bytes, deadline: float) -> ResponseHead:
        """Send a request and return the head of its response; ``piece`` returns the body. Raises like ``exchange``."""
        self._send(request, -1)
        while not self._answer.status:
            await self._progress(deadline)
        return self._answer

    async def piece(self, silence: float) -> bytes | None:
        """The next piece of the body, within ``silence`` seconds; None at its end. Raises like ``exchange``."""
        while not self._pieces:
            if self._is_whole:
                return None
            await self._progress(asyncio.get_running_loop().time() + silence)
        piece = self._pieces.popleft()
        self._count(-len(piece))
        return bytes(piece)

    def close(self) -> None:
        """Close the connection. The unsent part of an unanswered request is dropped."""
        if self._transport is None:
            return
        if self._is_whole:
            self._transport.close()
        else:
            # ``abort`` drops unsent data, so that an abandoned request is not processed later.
            self._transport.abort()

    def _send(self, request: bytes, wakes_beyond: int, most_pieces: float = inf) -> None:
        """Send a request, and reset the state of the previous response."""
        self._pieces_left = most_pieces
        # Reset before writing: a response may arrive within the same iteration of the loop.
        self._answer, self._headers, self._is_whole, self._has_lasted = ResponseHead(), 0, False, False
        self._is_framed = False
        self._wakes_beyond = wakes_beyond
        if self._transport is not None:
            self._transport.write(request)

    async def _progress(self, deadline: float) -> None:
        """Wait until more of the response has arrived. A bare timer costs less than ``asyncio.timeout``."""
        if self._broken:
            raise BrokenConnectionError(self._broken)
        loop = asyncio.get_running_loop()
        self._waiter = loop.create_future()
        timer = loop.call_at(deadline, _give_up, self._waiter)
        try:
            await self._waiter
        finally:
            self._waiter = None
            timer.cancel()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _break(self, why: str) -> None:
        self._broken = self._broken or why
        self.close()
        self._wake()

    def _count(self, more: int) -> None:
        before, self._unread = self._unread, self._unread + more
        # Pause or resume only when crossing the limit.
        if (before > MAX_UNREAD) is (self._unread > MAX_UNREAD):
            return
        if self._transport is None or self._transport.is_closing():
            return
        if self._unread > MAX_UNREAD:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()

    # Callbacks of the event loop ----------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See ``asyncio.Protocol``."""
        self._transport = cast("asyncio.Transport", transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """See ``asyncio.Protocol``."""
        self._break(f"the connection was lost: {exc}" if exc else "the server closed the connection")

    def eof_received(self) -> None:
        """See ``asyncio.Protocol``. This is the end of a body without a length."""
        # A framed body that ends early is incomplete: ``connection_lost`` follows.
        if self._answer.status and not self._is_whole and not self._is_framed and not self._broken:
            self._is_whole = True
            self._wake()

    def data_received(self, data: bytes) -> None:
        """See ``asyncio.Protocol``."""
        # A response without a request, such as a timeout notice on an idle connection.
        if self._is_whole:
            self._break(_UNASKED)
            return
        self._outside_body += len(data)
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._break(f"the response is not HTTP: {error}")
        if self._outside_body > MAX_OUTSIDE_BODY:
            self._break(f"the response is not HTTP: more than {MAX_OUTSIDE_BODY} bytes outside of its body")
        if self._unread > self._wakes_beyond:
            self._wake()

    # Callbacks of the parser --------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        """A response begins. An unsolicited one breaks the connection."""
        if self._is_whole:
            self._break(_UNASKED)

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header."""
        self._headers += 1
        if self._headers > MAX_HEADERS:
            raise ValueError("too many headers")
        # Compare the length first, to avoid lowercasing every name.
        if len(name) == len(_RETRY_AFTER) and name.lower() == _RETRY_AFTER:
            self._answer.retry_after = value.decode("latin-1")
        elif len(name) == len(self._extra_header) and name.lower() == self._extra_header:
            self._answer.extra = value.decode("latin-1")
        elif len(name) in _LENGTHS_OF_FRAMES and name.lower() in FRAMES:
            self._is_framed = True

    def on_headers_complete(self) -> None:
        """The head is complete."""
        status = self._parser.get_status_code()
        # Of an interim response the status stays 0. Nothing follows 101, which ends HTTP on the connection.
        self._answer.status = 0 if status in range(100, 200) and status != _SWITCHING_PROTOCOLS else status

    def on_body(self, body: bytes) -> None:
        """A piece of the body."""
        self._outside_body = 0
        self._pieces_left -= 1
        if self._pieces_left < 0:
            self._break(f"the response arrives in pieces of less than {LEAST_PIECE} bytes")
            raise ValueError("too many pieces")  # the parser reads no further
        last = self._pieces[-1] if self._pieces and len(body) <= _SMALL else b""
        if isinstance(last, bytearray):
            last += body
        elif last and len(last) <= _SMALL:
            self._pieces[-1] = bytearray(last + body)
        else:
            self._pieces.append(body)
        self._count(len(body))

    def on_message_complete(self) -> None:
        """The response is complete."""
        if not self._answer.status:
            # ``_outside_body`` keeps counting, so that a server cannot send interim responses forever.
            self._answer, self._headers, self._is_framed = ResponseHead(), 0, False
            return
        self._outside_body = 0
        self._is_whole, self._has_lasted = True, self._parser.should_keep_alive()
        self._wake()


def _give_up(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_exception(TimeoutError())
