"""Who is let in at a listener, and what one client may take of it: connections, and time to say what it wants.

Rules that hold here:

- Where a listener is for one client, any other is told so (403) and closed: its authority may sign for others, too.
- A connection beyond the limits of the listener or of its peer is told to come again (503) and closed.
- A request must be whole, head and body, within a time that begins with the connection or with its first byte;
  one that is not is answered with 408 and closed.
- A request that arrives in one piece starts no timer, nor does its answer on a connection that has answered before:
  hot paths pay nothing. One timer of a connection looks now and then how long it has been idle.
- A client that takes nothing of its answer for a while is cut off: what is sent to it is memory of ours.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from protocol.units import Seconds

LOG: Final = logging.getLogger("autoscale.serving")

SHOWN: Final = 100
"""Characters of a stranger's name that are logged."""

LONGEST_HEAD: Final = 32 * 1024
"""Bytes of a request's line and headers; the longest token has half of that."""

_CLOSE: Final = b"Connection: close\r\nContent-Length: 0\r\n"
TOO_MANY: Final = b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\n" + _CLOSE + b"\r\n"
NOT_FOR_IT: Final = b"HTTP/1.1 403 Forbidden\r\n" + _CLOSE + b"\r\n"
TOO_SLOW: Final = b"HTTP/1.1 408 Request Timeout\r\n" + _CLOSE + b"\r\n"


@dataclass(frozen=True, slots=True)
class Limits:
    """``connections`` of the listener and ``per_peer`` address at a time.

    ``request`` is how long a request may take to arrive, ``idle`` how long a connection may stay without one,
    ``handshake`` how long TLS may take to begin, and ``stall`` how long a client may take nothing of an answer.
    """

    connections: int = 8192
    per_peer: int = 1024
    request: Seconds = Seconds(10.0)
    idle: Seconds = Seconds(120.0)
    handshake: Seconds = Seconds(10.0)
    stall: Seconds = Seconds(30.0)


@dataclass(slots=True)
class Peers:
    """The connections of one listener, by the peer's address.

    ``client`` is the common name of the only one that it is for; empty where it is for all.
    """

    limits: Limits
    client: str = ""
    open: Counter[str] = field(default_factory=Counter)
    _told: str | None = None

    def is_for(self, certificate: Mapping[str, Any] | None) -> bool:
        """Whether the listener is for the client that shows this, in the form of ``ssl``; another name is logged."""
        shown = common_name(certificate)
        if not self.client or shown == self.client:
            return True
        if shown != self._told:
            LOG.warning("a client is turned away", extra={"client": shown[:SHOWN], "expected": self.client})
        self._told = shown
        return False

    def admit(self, peer: str) -> bool:
        """Counts a new connection; whether it is within the limits."""
        self.open[peer] += 1
        return self.open.total() <= self.limits.connections and self.open[peer] <= self.limits.per_peer

    def leave(self, peer: str) -> None:
        """A connection, admitted or not, has ended."""
        self.open[peer] -= 1
        if not self.open[peer]:
            del self.open[peer]


def common_name(certificate: Mapping[str, Any] | None) -> str:
    """The common name of a certificate's subject, in the form of ``ssl``; empty where it has none, or several.

    >>> common_name({"subject": ((("organizationName", "a"),), (("commonName", "b"),))})
    'b'
    """
    subject = () if certificate is None else certificate.get("subject", ())
    names = [value for part in subject for kind, value in part if kind == "commonName"]
    return str(names[0]) if len(names) == 1 else ""


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
        self._in_head = True
        self._head_size = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as in uvicorn
        """Admits the connection, or turns it away."""
        super().connection_made(transport)
        self._is_for_it = self._peers.is_for(transport.get_extra_info("peercert"))
        if self._peers.admit(self._peer):
            self._start()
        else:
            self._close(TOO_MANY)

    def connection_lost(self, exc: Exception | None) -> None:
        """Frees its place."""
        self._stop()
        self._move_on()
        if self.timeout_keep_alive_task is not None:
            self.timeout_keep_alive_task.cancel()
            self.timeout_keep_alive_task = None
        self._peers.leave(self._peer)
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """The client takes less than it is sent; from now on it has to take something in each ``stall``."""
        super().pause_writing()
        self._look_again()

    def resume_writing(self) -> None:
        """It has caught up."""
        super().resume_writing()
        self._move_on()

    def data_received(self, data: bytes) -> None:
        """Takes a piece of a request; the time runs until the request is whole."""
        if self.transport.is_closing():
            return
        if not self._is_for_it:  # told only now: an answer before the request would be lost with the connection
            self._close(NOT_FOR_IT)
            return
        self._is_whole = False
        super().data_received(data)
        if self._is_whole:
            self._stop()
            return
        self._start()
        if self._in_head:
            self._head_size += len(data)
            if self._head_size > LONGEST_HEAD:
                self._refuse_head()

    def on_message_begin(self) -> None:
        """A request begins."""
        self._is_whole, self._in_head, self._head_size = False, True, 0
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Takes a header, unless all of them are too long."""
        self._head_size += len(name) + len(value)
        if self._head_size > LONGEST_HEAD:
            raise ValueError("the head is too long")
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """The body follows."""
        self._in_head = False
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """The request is whole; another one may have begun in the same piece."""
        self._is_whole, self._in_head, self._head_size = True, True, 0
        super().on_message_complete()
        self._rest_if_answered()

    def on_response_complete(self) -> None:
        """What was pipelined comes next; where nothing was, the connection is idle from now on."""
        self.server_state.total_requests += 1
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
        if self.timeout_keep_alive_task is None:
            self._end_unless_used_within(self.timeout_keep_alive)

    def _unset_keepalive_if_required(self) -> None:
        """Something has come: the connection is not idle. The timer stays."""
        self._idle_since = None

    def _end_unless_used_within(self, seconds: float) -> None:
        self.timeout_keep_alive_task = self.loop.call_later(seconds, self._end_if_idle)

    def _end_if_idle(self) -> None:
        """Ends a connection that has been idle for long enough; one that is in use starts the timer anew."""
        self.timeout_keep_alive_task = None
        if self._idle_since is None:
            return
        left = self._idle_since + self.timeout_keep_alive - self.loop.time()
        if left > 0:
            self._end_unless_used_within(left)
        else:
            self.timeout_keep_alive_handler()

    @property
    def _peer(self) -> str:
        return self.client[0] if self.client else ""

    def _refuse_head(self) -> None:
        self.send_400_response("The head of the request is too long.")

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
        if self.transport.get_write_buffer_size() >= left:
            self.transport.abort()
        else:
            self._look_again()

    def _move_on(self) -> None:
        if self._stalled is not None:
            self._stalled.cancel()
            self._stalled = None

    def _close(self, answer: bytes) -> None:
        cycle: RequestResponseCycle | None = self.cycle  # None before the first request
        if cycle is None or not cycle.response_started or cycle.response_complete:
            self.transport.write(answer)
        self.transport.close()
