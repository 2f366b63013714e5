"""HTTP over one connection, within the limits of its listener.

A request must be complete, head and body, within a timeout that starts with the connection or with the request's first
byte; otherwise the response is 408 and the connection closes.
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
"""Maximum bytes of a request's line and headers; the longest token takes half of that."""

MAX_HEADERS: Final = 100
"""Maximum headers of a request: a short one takes 30 times its length in memory. Clients and proxies send up to 40."""

MAX_WAITING: Final = 16
"""Maximum pipelined requests. Each takes a kilobyte, and our own clients do not pipeline."""

SMALL_BODY: Final = 128 * 1024
"""Bodies of authenticated clients up to this size (a full batch of an agent) do not count towards ``Limits.bodies``."""

UNAUTHORIZED: Final = 401

_CLOSE: Final = b"Connection: close\r\nContent-Length: 0\r\n"
TOO_MANY: Final = b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\n" + _CLOSE + b"\r\n"
WRONG_CLIENT: Final = b"HTTP/1.1 403 Forbidden\r\n" + _CLOSE + b"\r\n"
TOO_SLOW: Final = b"HTTP/1.1 408 Request Timeout\r\n" + _CLOSE + b"\r\n"


def authenticate(request: Request) -> None:
    """Mark the connection of ``request`` as authenticated, so that it keeps its slot."""
    connection = getattr(request.state, "connection", None)
    if isinstance(connection, BoundedProtocol):
        connection.authenticate()


def is_authenticated(request: Request) -> bool:
    """Return True if an earlier request on this connection was authenticated."""
    connection = getattr(request.state, "connection", None)
    return isinstance(connection, BoundedProtocol) and connection.is_authenticated


class BoundedProtocol(HttpToolsProtocol):
    """uvicorn's HTTP protocol for one connection, within ``Limits``, which uvicorn's parser does not enforce."""

    def __init__(self, peers: Peers, **options: Any) -> None:
        super().__init__(**options)
        self._peers = peers
        self._deadline: asyncio.TimerHandle | None = None
        self._stalled: asyncio.TimerHandle | None = None
        self._idle_since: float | None = None
        self._is_whole = False
        self._is_expected = True
        self.is_authenticated = False
        self._idle_limit = peers.limits.idle_unauthenticated
        self._is_outside_body = True
        self._head_size = self._outside_body = 0
        self._body_size = 0
        self._is_held = False
        # uvicorn's ``cycle`` belongs to the last request received, which may still be queued.
        self._answering: RequestResponseCycle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as in uvicorn
        """Admit the connection, or reject it."""
        super().connection_made(transport)
        # The listener's CA may also sign for other clients; admit only the expected one.
        self._is_expected = self._peers.is_expected(transport.get_extra_info("peercert"))
        if self._peers.admit(self, self.address):
            self._start()
        else:
            self._close(TOO_MANY)

    def connection_lost(self, exc: Exception | None) -> None:
        """Free the connection's slot."""
        self._stop()
        self._stop_progress_checks()
        if self.timeout_keep_alive_task is not None:
            self.timeout_keep_alive_task.cancel()
            self.timeout_keep_alive_task = None
        self._peers.leave(self, self.address)
        # Tell the application, so that it does not write to a closed connection.
        if self._answering is not None:
            self._answering.disconnected = True
            self._answering.message_event.set()
        super().connection_lost(exc)
        self._release()

    def authenticate(self) -> None:
        """Mark the connection as authenticated: it keeps its slot and may be idle for longer."""
        if not self.is_authenticated:
            self.is_authenticated = True
            self._idle_limit = self._peers.limits.idle
            self._peers.authenticated(self)

    def displace(self) -> None:
        """End the connection in favour of a newer one; a client that does not read must not delay that."""
        self.transport.abort()

    def closes_with(self, status: int) -> bool:
        """Return True if the connection closes after a response with this status."""
        return status == UNAUTHORIZED or (400 <= status < 500 and not self.is_authenticated)

    def pause_writing(self) -> None:
        """See ``asyncio.Protocol``. From now on the client must read something within each ``stall``."""
        # Unsent bytes take our memory.
        super().pause_writing()
        self._check_progress_later()

    def resume_writing(self) -> None:
        """See ``asyncio.Protocol``."""
        super().resume_writing()
        self._stop_progress_checks()

    def data_received(self, data: bytes) -> None:
        """See ``asyncio.Protocol``. The timeout runs until the request is complete."""
        if self.transport.is_closing():
            return
        if not self._is_expected:  # only now: a response before the request would be lost on close
            self._close(WRONG_CLIENT)
            return
        self._is_whole, self._is_outside_body = False, True
        super().data_received(data)
        # A request that arrives in one piece needs no timer.
        if self._is_whole:
            self._stop()
            return
        self._start()
        # Also chunk extensions and trailers after the body: the parser keeps an unfinished header, of any length.
        if self._is_outside_body:
            self._outside_body += len(data)
            if self._outside_body > LONGEST_HEAD:
                self.send_400_response("The head of the request is too long.")

    def on_message_begin(self) -> None:
        """A request begins."""
        self._is_whole, self._is_outside_body, self._head_size, self._outside_body = False, True, 0, 0
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        """Check the length of the URL."""
        self._add_to_head(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Check the number and total length of headers."""
        self._add_to_head(len(name) + len(value))
        if len(self.headers) >= MAX_HEADERS:
            raise ValueError("the head has too many headers")
        super().on_header(name, value)

    def _add_to_head(self, size: int) -> None:
        self._head_size += size
        if self._head_size > LONGEST_HEAD:
            # The parser converts it to its own error, and uvicorn responds with 400.
            raise ValueError("the head is too long")

    def on_headers_complete(self) -> None:
        """Check the number of pipelined requests."""
        self._is_outside_body, self._outside_body = False, 0
        if len(self.pipeline) >= MAX_WAITING:
            raise ValueError("too many requests at once")
        super().on_headers_complete()

    def send_400_response(self, msg: str) -> None:
        """Reject a request that is not HTTP or exceeds a limit, and close the connection."""
        if self._may_refuse:
            super().send_400_response(msg)
        else:
            self.transport.abort()

    @property
    def _may_refuse(self) -> bool:
        """Return True if the client would match a refusal to the request that is arriving."""
        open_request = self._answering
        # Not if an earlier request is still unanswered.
        return open_request is None or (open_request.more_body and not open_request.response_started)

    def on_body(self, body: bytes) -> None:
        """Account for a piece of a body."""
        self._is_outside_body, self._outside_body = False, 0
        # After an early response, the rest of the body is dropped.
        if self._answering is not None:
            self._body_size += len(body)
            if self._body_size > SMALL_BODY or not self.is_authenticated:
                self._is_held = True
                self._peers.hold(self, self.address, self._body_size)
        super().on_body(body)

    def on_message_complete(self) -> None:
        """The request is complete; another one may begin in the same piece."""
        self._is_whole, self._is_outside_body, self._head_size, self._outside_body = True, True, 0, 0
        super().on_message_complete()
        self._become_idle_if_answered()

    def on_response_complete(self) -> None:
        """Continue with the next pipelined request; without one, the connection becomes idle."""
        self.server_state.total_requests += 1
        self._answering = None
        # Pipelined requests may already have bodies.
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
            self._become_idle()

    def _become_idle_if_answered(self) -> None:
        """Become idle if the request was answered before its body was complete."""
        cycle: RequestResponseCycle | None = self.cycle
        is_over = cycle is not None and cycle.response_complete and not self.pipeline
        if is_over and self._idle_since is None and not self.transport.is_closing():
            self._become_idle()

    def _become_idle(self) -> None:
        self._idle_since = self.loop.time()
        # One timer per connection checks the idle time now and then, instead of one timer per response.
        if self.timeout_keep_alive_task is None:
            self._end_unless_used_within(self._idle_limit)

    def _unset_keepalive_if_required(self) -> None:
        """Data has arrived, so the connection is not idle. The timer keeps running."""
        self._idle_since = None

    def _end_unless_used_within(self, seconds: float) -> None:
        self.timeout_keep_alive_task = self.loop.call_later(seconds, self._end_if_idle)

    def _end_if_idle(self) -> None:
        """Close the connection if it has been idle for long enough; otherwise restart the timer."""
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
        """The peer's IP address; empty if unknown."""
        return self.client[0] if self.client else ""

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        """Run the application, which can authenticate the connection through ``request.state.connection``."""
        self._answering = cycle
        super()._start_asgi_task(cycle, partial(self._answered_by, app))

    async def _answered_by(self, app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
        async def closing(message: Message) -> None:
            if message["type"] == "http.response.start" and self.closes_with(message["status"]):
                # uvicorn closes the connection after a response with this header.
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

    def _check_progress_later(self) -> None:
        left = self.transport.get_write_buffer_size()
        self._stalled = self.loop.call_later(self._peers.limits.stall, self._abort_unless_below, left)

    def _abort_unless_below(self, left: int) -> None:
        # The client has read nothing within ``stall``.
        if self.transport.get_write_buffer_size() >= left:
            self.transport.abort()
        else:
            self._check_progress_later()

    def _stop_progress_checks(self) -> None:
        if self._stalled is not None:
            self._stalled.cancel()
            self._stalled = None

    def _release(self) -> None:
        """Break reference cycles, so that the connection is freed immediately: full garbage collections are rare."""
        self.pipeline.clear()
        self.cycle = self.scope = self.headers = self._answering = None  # type: ignore[assignment]

    def _close(self, answer: bytes) -> None:
        # Never write into another response, or in its place.
        if self._may_refuse:
            self.transport.write(answer)
        self.transport.close()
