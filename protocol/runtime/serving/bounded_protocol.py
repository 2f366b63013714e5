"""HTTP over one connection, within the limits of its listener.

A request must be whole, head and body, within a time that begins with the connection or with its first byte;
one that is not is answered with 408 and closed.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any, Final

from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from protocol.runtime.serving.limits import Peers

LONGEST_HEAD: Final = 32 * 1024
"""Bytes of a request's line and headers; the longest token has half of that."""

MOST_HEADERS: Final = 100
"""Headers of a request: a short one takes 30 times its length of memory. Clients and proxies send up to 40."""

MOST_WAITING: Final = 16
"""Requests that a client may send ahead of their answers. Each takes a kilobyte, and clients of ours send none."""

SMALL_BODY: Final = 128 * 1024
"""Bytes of an authenticated client's body that do not count among ``Limits.bodies``: a full batch of an agent."""

UNAUTHORIZED: Final = 401

_CLOSE: Final = b"Connection: close\r\nContent-Length: 0\r\n"
TOO_MANY: Final = b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\n" + _CLOSE + b"\r\n"
NOT_FOR_IT: Final = b"HTTP/1.1 403 Forbidden\r\n" + _CLOSE + b"\r\n"
TOO_SLOW: Final = b"HTTP/1.1 408 Request Timeout\r\n" + _CLOSE + b"\r\n"


def authenticate(request: Request) -> None:
    """The client has shown in ``request`` who it is; its connection keeps its place."""
    connection = getattr(request.state, "connection", None)
    if isinstance(connection, BoundedProtocol):
        connection.authenticate()


def is_authenticated(request: Request) -> bool:
    """Return True if the client has shown on this connection before who it is."""
    connection = getattr(request.state, "connection", None)
    return isinstance(connection, BoundedProtocol) and connection.is_authenticated


class BoundedProtocol(HttpToolsProtocol):
    """uvicorn's HTTP over one connection, within ``Limits``; the parser itself bounds nothing."""

    def __init__(self, peers: Peers, **options: Any) -> None:
        super().__init__(**options)
        self._peers = peers
        self._deadline: asyncio.TimerHandle | None = None
        self._stalled: asyncio.TimerHandle | None = None
        self._idle_since: float | None = None
        self._is_whole = False
        self._is_for_it = True
        self.is_authenticated = False
        self._idle_limit = peers.limits.idle_unauthenticated
        self._in_head = True
        self._head_size = 0
        self._body_size = 0
        self._is_held = False
        # uvicorn's ``cycle`` is that of the last request that has arrived, which may have to wait.
        self._answering: RequestResponseCycle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as in uvicorn
        """Admit the connection, or turns it away."""
        super().connection_made(transport)
        # The listener's authority may sign for others, too; only one client is let in by name.
        self._is_for_it = self._peers.is_for(transport.get_extra_info("peercert"))
        if self._peers.admit(self, self.address):
            self._start()
        else:
            self._close(TOO_MANY)

    def connection_lost(self, exc: Exception | None) -> None:
        """Free its place."""
        self._stop()
        self._move_on()
        if self.timeout_keep_alive_task is not None:
            self.timeout_keep_alive_task.cancel()
            self.timeout_keep_alive_task = None
        self._peers.leave(self, self.address)
        # The application learns that nobody reads its answer, and does not write to a closed connection.
        if self._answering is not None:
            self._answering.disconnected = True
            self._answering.message_event.set()
        super().connection_lost(exc)
        self._release()

    def authenticate(self) -> None:
        """The client has shown who it is: the connection keeps its place and may be idle for longer."""
        if not self.is_authenticated:
            self.is_authenticated = True
            self._idle_limit = self._peers.limits.idle
            self._peers.authenticated(self)

    def displace(self) -> None:
        """A newer connection needs the place; a client that reads nothing must not delay that."""
        self.transport.abort()

    def closes_with(self, status: int) -> bool:
        """Return True if the connection ends with an answer of this status."""
        return status == UNAUTHORIZED or (400 <= status < 500 and not self.is_authenticated)

    def pause_writing(self) -> None:
        """The client reads too slowly; from now on it has to read something within each ``stall``."""
        # Unsent bytes are our memory.
        super().pause_writing()
        self._look_again()

    def resume_writing(self) -> None:
        """It has caught up."""
        super().resume_writing()
        self._move_on()

    def data_received(self, data: bytes) -> None:
        """Take a piece of a request; the time runs until the request is whole."""
        if self.transport.is_closing():
            return
        if not self._is_for_it:  # told only now: an answer before the request would be lost with the connection
            self._close(NOT_FOR_IT)
            return
        self._is_whole = False
        super().data_received(data)
        # A request that arrives in one piece starts no timer: hot paths pay nothing.
        if self._is_whole:
            self._stop()
            return
        self._start()
        if self._in_head:
            self._head_size += len(data)
            if self._head_size > LONGEST_HEAD:
                self.send_400_response("The head of the request is too long.")

    def on_message_begin(self) -> None:
        """A request begins."""
        self._is_whole, self._in_head, self._head_size = False, True, 0
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        """Take a part of the address, unless it is too long."""
        self._add_to_head(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header, unless there are too many, or all of them are too long."""
        self._add_to_head(len(name) + len(value))
        if len(self.headers) >= MOST_HEADERS:
            raise ValueError("the head has too many headers")
        super().on_header(name, value)

    def _add_to_head(self, size: int) -> None:
        self._head_size += size
        if self._head_size > LONGEST_HEAD:
            # The parser turns it into an error of its own, and uvicorn answers 400.
            raise ValueError("the head is too long")

    def on_headers_complete(self) -> None:
        """The body follows."""
        self._in_head = False
        if len(self.pipeline) >= MOST_WAITING:
            raise ValueError("too many requests at once")
        super().on_headers_complete()

    def send_400_response(self, msg: str) -> None:
        """Reject what is not HTTP, or exceeds a limit, and ends the connection."""
        if self._may_refuse:
            super().send_400_response(msg)
        else:
            self.transport.abort()

    @property
    def _may_refuse(self) -> bool:
        """Return True if the client will take a refusal for the answer to the request that is arriving."""
        open_request = self._answering
        # Not if an earlier request waits for its answer.
        return open_request is None or (open_request.more_body and not open_request.response_started)

    def on_body(self, body: bytes) -> None:
        """Take a piece of a body."""
        # What follows an early answer is dropped.
        if self._answering is not None:
            self._body_size += len(body)
            if self._body_size > SMALL_BODY or not self.is_authenticated:
                self._is_held = True
                self._peers.hold(self, self.address, self._body_size)
        super().on_body(body)

    def on_message_complete(self) -> None:
        """The request is whole; another one may have begun in the same piece."""
        self._is_whole, self._in_head, self._head_size = True, True, 0
        super().on_message_complete()
        self._rest_if_answered()

    def on_response_complete(self) -> None:
        """Continue with the next pipelined request; without one the connection is idle from now on."""
        self.server_state.total_requests += 1
        self._answering = None
        # Requests sent ahead have theirs already.
        self._body_size = sum(len(cycle.body) for cycle, _ in self.pipeline)
        if self._is_held:
            self._is_held = self._body_size > 0
            self._peers.hold(self, self.address, self._body_size)
        if self.transport.is_closing():
            return
        self.flow.resume_reading()
        if self.pipeline:
            self._start_asgi_task(*self.pipeline.pop())
        else:
            self._rest()

    def _rest_if_answered(self) -> None:
        """A request that was answered by its head, or before its body had been read, is over only now."""
        cycle: RequestResponseCycle | None = self.cycle
        is_over = cycle is not None and cycle.response_complete and not self.pipeline
        if is_over and self._idle_since is None and not self.transport.is_closing():
            self._rest()

    def _rest(self) -> None:
        self._idle_since = self.loop.time()
        # One timer for the connection looks now and then how long it has been idle, instead of one for each answer.
        if self.timeout_keep_alive_task is None:
            self._end_unless_used_within(self._idle_limit)

    def _unset_keepalive_if_required(self) -> None:
        """Data has arrived: the connection is not idle. The timer stays."""
        self._idle_since = None

    def _end_unless_used_within(self, seconds: float) -> None:
        self.timeout_keep_alive_task = self.loop.call_later(seconds, self._end_if_idle)

    def _end_if_idle(self) -> None:
        """End a connection that has been idle for long enough; one that is in use starts the timer again."""
        self.timeout_keep_alive_task = None
        if self._idle_since is None:
            return
        left = self._idle_since + self._idle_limit - self.loop.time()
        if left > 0:
            self._end_unless_used_within(left)
        else:
            self.timeout_keep_alive_handler()

    @property
    def address(self) -> str:
        """The peer's IP address; empty if it has none."""
        return self.client[0] if self.client else ""

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        """Run the application, which authenticates the connection by ``request.state.connection``."""
        self._answering = cycle
        super()._start_asgi_task(cycle, partial(self._answered_by, app))

    async def _answered_by(self, app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
        async def closing(message: Message) -> None:
            if message["type"] == "http.response.start" and self.closes_with(message["status"]):
                # uvicorn closes the connection after an answer with this header.
                message = {**message, "headers": [*message.get("headers", []), (b"connection", b"close")]}
            await send(message)

        scope["state"]["connection"] = self
        await app(scope, receive, closing)

    def _start(self) -> None:
        if self._deadline is None:
            self._deadline = self.loop.call_later(self._peers.limits.request, self._close, TOO_SLOW)

    def _stop(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _look_again(self) -> None:
        left = self.transport.get_write_buffer_size()
        self._stalled = self.loop.call_later(self._peers.limits.stall, self._cut_off_unless_below, left)

    def _cut_off_unless_below(self, left: int) -> None:
        # Not one byte less than ``stall`` ago.
        if self.transport.get_write_buffer_size() >= left:
            self.transport.abort()
        else:
            self._look_again()

    def _move_on(self) -> None:
        if self._stalled is not None:
            self._stalled.cancel()
            self._stalled = None

    def _release(self) -> None:
        """Drop what refers back to the connection, which is then freed at once: full collections are rare."""
        self.pipeline.clear()
        self.cycle = self.scope = self.headers = self._answering = None  # type: ignore[assignment]

    def _close(self, answer: bytes) -> None:
        # Never into the middle of another answer, or in its place.
        if self._may_refuse:
            self.transport.write(answer)
        self.transport.close()
