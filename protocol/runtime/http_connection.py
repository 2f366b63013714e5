"""One HTTP/1.1 connection as a client: requests one after the other, and answers as they arrive.

- The parser is httptools'. What breaks the rules of HTTP, or ends before it is whole, raises ``BrokenConnectionError``.
- A connection that has broken, or on which an answer was given up, is never used again.
"""

from __future__ import annotations

import asyncio
from asyncio.trsock import TransportSocket
from collections import deque
from dataclasses import dataclass
from math import inf
from typing import Final, cast

import httptools

# Bytes. Beyond this we stop reading, which holds up a peer that sends faster than we consume.
MOST_UNREAD: Final = 1024 * 1024
# Bytes outside of a body: the parser buffers heads and trailers, so they need a limit of their own.
MOST_BESIDE: Final = 64 * 1024
MOST_HEADERS: Final = 200
# An answer that is read as a whole may come in ``FEW_PIECES``, and one more for every ``LEAST_PIECE`` bytes that it is
# allowed to have: each piece costs time.
LEAST_PIECE: Final = 64
FEW_PIECES: Final = 64
# A piece up to this size joins the one before it: an object of its own takes up to twice its bytes.
_SMALL: Final = 4096
_RETRY_AFTER: Final = b"retry-after"
FRAMES: Final = frozenset({b"content-length", b"transfer-encoding"})
"""The headers that say where a body ends, in lower case; without them it ends with the connection."""
_LENGTHS_OF_FRAMES: Final = frozenset(map(len, FRAMES))
_UNASKED: Final = "the server said something that was not asked for"


class BrokenConnectionError(Exception):
    """The connection ended, or what came over it is not HTTP; the request may have been carried out."""


class LongAnswerError(Exception):
    """The answer has more bytes than the caller allows."""


@dataclass(slots=True)
class ResponseHead:
    """The head of an answer; ``status`` is 0 until it has arrived. ``wanted`` is the value of the wanted header."""

    status: int = 0
    retry_after: str = ""
    wanted: str = ""

    @property
    def is_success(self) -> bool:
        """True if the request was carried out."""
        return 200 <= self.status < 300


class HttpConnection(asyncio.Protocol):
    """Carries one request at a time. ``wanted`` names a header that answers may have, in lower case."""

    def __init__(self, wanted: bytes = b"") -> None:
        self._wanted = wanted
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._answer = ResponseHead()
        self._headers = 0
        self._beside = 0
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
        """The socket below. Raises ``BrokenConnectionError`` before the connection is made."""
        if self._transport is None:
            raise BrokenConnectionError("there is no connection yet")
        socket: TransportSocket = self._transport.get_extra_info("socket")
        return socket

    async def whole(self, request: bytes, deadline: float, longest: int) -> tuple[ResponseHead, bytes]:
        """Send a request; return its whole answer.

        ``deadline`` is an instant of the event loop, ``longest`` is in bytes. Raises ``BrokenConnectionError``,
        ``LongAnswerError`` and ``TimeoutError``.
        """
        self._send(request, min(longest, MOST_UNREAD), FEW_PIECES + longest // LEAST_PIECE)
        pieces: list[bytes | bytearray] = []
        size = 0
        while True:
            pieces += self._pieces
            size += self._unread
            self._pieces.clear()
            self._count(-self._unread)
            if size > longest:
                raise LongAnswerError
            # Checked after the pieces were taken: the end may have come together with the last of them.
            if self._is_whole:
                return self._answer, bytes(pieces[0]) if len(pieces) == 1 else b"".join(pieces)
            await self._progress(deadline)

    async def ask(self, request: bytes, deadline: float) -> ResponseHead:
        """Send a request; return the head of its answer, whose body ``piece`` gives. Raises as ``whole``."""
        self._send(request, -1)
        while not self._answer.status:
            await self._progress(deadline)
        return self._answer

    async def piece(self, silence: float) -> bytes | None:
        """The next piece of the body, within this many seconds; None at its end. Raises as ``whole``."""
        while not self._pieces:
            if self._is_whole:
                return None
            await self._progress(asyncio.get_running_loop().time() + silence)
        piece = self._pieces.popleft()
        self._count(-len(piece))
        return bytes(piece)

    def close(self) -> None:
        """End the connection. An unanswered request is dropped, as far as it has not been sent."""
        if self._transport is None:
            return
        if self._is_whole:
            self._transport.close()
        else:
            # abort drops what is not sent yet, so that a request that was given up is not carried out later.
            self._transport.abort()

    def _send(self, request: bytes, wakes_beyond: int, most_pieces: float = inf) -> None:
        """Send a request, and forgets the state of the answer before it."""
        self._pieces_left = most_pieces
        # Reset before writing: an answer may arrive within the same turn of the loop.
        self._answer, self._headers, self._is_whole, self._has_lasted = ResponseHead(), 0, False, False
        self._is_framed = False
        self._wakes_beyond = wakes_beyond
        if self._transport is not None:
            self._transport.write(request)

    async def _progress(self, deadline: float) -> None:
        """Wait until the answer has progressed. A bare timer costs less than ``asyncio.timeout``."""
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
        # Only a crossing of the limit changes whether the transport reads.
        if (before > MOST_UNREAD) is (self._unread > MOST_UNREAD):
            return
        if self._transport is None or self._transport.is_closing():
            return
        if self._unread > MOST_UNREAD:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()

    # Callbacks of the event loop ----------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The connection is open."""
        self._transport = cast("asyncio.Transport", transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection has ended, of itself or by us."""
        self._break(f"the connection ended: {exc}" if exc else "the server ended the connection")

    def eof_received(self) -> None:
        """The server has sent everything: the body of an answer without a length is whole."""
        # A framed body that ends early is broken, not whole: ``connection_lost`` follows.
        if self._answer.status and not self._is_whole and not self._is_framed and not self._broken:
            self._is_whole = True
            self._wake()

    def data_received(self, data: bytes) -> None:
        """A piece of an answer."""
        # An answer without a request, for example a timeout notice on an idle connection.
        if self._is_whole:
            self._break(_UNASKED)
            return
        self._beside += len(data)
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._break(f"the answer is not HTTP: {error}")
        if self._beside > MOST_BESIDE:
            self._break(f"the answer is not HTTP: more than {MOST_BESIDE} bytes outside of its body")
        if self._unread > self._wakes_beyond:
            self._wake()

    # Callbacks of the parser --------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        """An answer begins; one that was not asked for breaks the connection."""
        if self._is_whole:
            self._break(_UNASKED)

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header."""
        self._headers += 1
        if self._headers > MOST_HEADERS:
            raise ValueError("too many headers")
        # Comparing the length first avoids lowering every name.
        if len(name) == len(_RETRY_AFTER) and name.lower() == _RETRY_AFTER:
            self._answer.retry_after = value.decode("latin-1")
        elif len(name) == len(self._wanted) and name.lower() == self._wanted:
            self._answer.wanted = value.decode("latin-1")
        elif len(name) in _LENGTHS_OF_FRAMES and name.lower() in FRAMES:
            self._is_framed = True

    def on_headers_complete(self) -> None:
        """The head is whole."""
        self._answer.status = self._parser.get_status_code()

    def on_body(self, body: bytes) -> None:
        """A piece of the body."""
        self._beside = 0
        self._pieces_left -= 1
        if self._pieces_left < 0:
            self._break(f"the answer comes in pieces of less than {LEAST_PIECE} bytes")
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
        """The answer is whole."""
        self._beside = 0
        self._is_whole, self._has_lasted = True, self._parser.should_keep_alive()
        self._wake()


def _give_up(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_exception(TimeoutError())
