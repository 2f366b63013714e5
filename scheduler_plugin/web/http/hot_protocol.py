"""Hot paths answered right from the connection: without ASGI's scope, events, and messages (decision 49).

Rules that hold here:

- Everything else on the connection stays uvicorn's: parsing, the order of pipelined requests, keep-alive, shutdown.
- A client that is not let in is answered before its body is read, and no body is kept that will not be looked at.
- An answer is one write. A handler that need not wait is called as soon as the body is whole, and needs no task.
- A client that does not read its answers is not worked for.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Mapping
from typing import Any, Final

import msgspec
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from protocol.wire.wire_batches import OFFER
from scheduler_plugin.web.bodies import BodyError, too_long
from scheduler_plugin.web.http.bounded_protocol import LONGEST_HEAD, BoundedProtocol
from scheduler_plugin.web.http.hot_paths import HotPath, HotPaths, HotRequest, HotResponse
from scheduler_plugin.web.limits import Peers
from scheduler_plugin.web.models import Problem

LOG: Final = logging.getLogger("autoscale.serving")

_OFFER: Final = OFFER.encode()

_FAILED: Final = HotResponse(
    msgspec.json.encode(Problem("internal error; see the scheduler log")), 500, {"connection": "close"}
)
_ENDING: Final = HotResponse(
    msgspec.json.encode(Problem("this process ends, ask again")), 503, {"retry-after": "0", "connection": "close"}
)
"""For what is still open when the listener's time is over."""


class _NoEvent:
    """Event that uvicorn sets for a request that waits for its body; ours do not wait."""

    def set(self) -> None:
        """Nothing waits."""


class HotCycle:
    """One request and its answer; stands where uvicorn has a ``RequestResponseCycle``.

    It is answered once it is whole and all requests before it have been answered.
    """

    __slots__ = (
        "_authorization",
        "_fault",
        "_is_due",
        "_is_whole",
        "_knows_batches",
        "_path",
        "_pieces",
        "_protocol",
        "_refusal",
        "_size",
        "disconnected",
        "keep_alive",
        "response_complete",
        "response_started",
    )
    message_event = _NoEvent()

    def __init__(self, protocol: HotProtocol, path: HotPath, headers: Mapping[bytes, bytes]) -> None:
        shown = headers.get(b"authorization")
        self._protocol = protocol
        self._path = path
        self._authorization = None if shown is None else shown.decode("latin-1")
        self._knows_batches = _OFFER in headers
        self._pieces: list[bytes] = []
        self._size = 0
        self._fault: BodyError | None = None
        self._refusal: HotResponse | None = None
        self._is_whole = self._is_due = False
        self.keep_alive: bool = protocol.parser.should_keep_alive()
        self.disconnected = self.response_started = self.response_complete = False

    def admit(self, length: bytes) -> None:
        """The head is whole, and says how long the body is. What is refused by the head is answered before the body."""
        if self._protocol.is_authenticated:
            self._refusal = self._path.admission(self._authorization)
        else:
            self._refusal = self._path.refusal(self._authorization, self._protocol.address)
        if self._refusal is not None:
            self.end()
        elif length.isdigit() and (len(length) > len(str(self._path.longest)) or int(length) > self._path.longest):
            self._refuse_body()

    def take(self, piece: bytes) -> None:
        """A piece of the body."""
        if self._is_whole:  # it was refused: the rest of its body is useless
            return
        self._size += len(piece)
        if self._size > self._path.longest:
            self._refuse_body()
        else:
            self._pieces.append(piece)

    def end(self) -> None:
        """The body is whole."""
        if not self._is_whole:
            self._is_whole = True
            self._answer()

    def start(self) -> None:
        """All requests before it have been answered."""
        self._is_due = True
        self._answer()

    def _refuse_body(self) -> None:
        self._fault = too_long(self._path.longest)
        self._pieces.clear()
        self.end()

    def _answer(self) -> None:
        if not (self._is_whole and self._is_due):
            return
        protocol, pieces = self._protocol, self._pieces
        content = self._fault or (pieces[0] if len(pieces) == 1 else b"".join(pieces))
        request = HotRequest(content, self._authorization, protocol.address, self._knows_batches)
        if protocol.flow.write_paused:
            protocol.work(self._answer_later(self._once_read(request)))
            return
        try:
            found = self._path.answer(request, self._refusal)
        except Exception:
            LOG.exception("a request failed")
            found = _FAILED
        if isinstance(found, HotResponse):
            self.send(found)
        else:
            protocol.work(self._answer_later(found))

    async def _once_read(self, request: HotRequest) -> HotResponse:
        """The client has to read what was answered before."""
        await self._protocol.flow.drain()
        found = self._path.answer(request, self._refusal)
        return found if isinstance(found, HotResponse) else await found

    async def _answer_later(self, answer: Awaitable[HotResponse]) -> None:
        found = _ENDING
        try:
            found = await answer
        except Exception:
            found = _FAILED
            LOG.exception("a request failed")
        finally:
            self.send(found)
        if found.rest is not None:
            await found.rest

    def send(self, response: HotResponse) -> None:
        """Sends the answer."""
        if self.disconnected or self._protocol.transport.is_closing():
            return
        self.response_started = self.response_complete = True
        if response.status < 400:
            if response.authenticates:
                self._protocol.authenticate()
        elif self._protocol.closes_with(response.status):
            self.keep_alive = False
        more = _lines(response.headers) if response.headers else b""
        if "connection" in response.headers:
            self.keep_alive = False
        elif not self.keep_alive:
            more += b"connection: close\r\n"
        self._protocol.transport.write(
            b"%s%scontent-type: application/json\r\ncontent-length: %d\r\n%s\r\n%s"
            % (STATUS_LINE[response.status], self._protocol.default_lines(), len(response.body), more, response.body)
        )
        if not self.keep_alive:
            self._protocol.transport.close()
        self._protocol.on_response_complete()


def _lines(headers: Mapping[str, str]) -> bytes:
    return "".join(f"{name}: {value}\r\n" for name, value in headers.items()).encode("latin-1")


class HotProtocol(BoundedProtocol):
    """HTTP over one connection, with the hot paths of ``app``."""

    cycle: RequestResponseCycle | HotCycle  # type: ignore[assignment]  # ours does what uvicorn's is asked for here

    def __init__(self, peers: Peers, app: HotPaths, **options: Any) -> None:
        super().__init__(peers, **options)
        self._hot = app.by_url
        self._default_headers: list[tuple[bytes, bytes]] | None = None
        self._default_lines = b""

    def default_lines(self) -> bytes:
        """The headers of every answer, which uvicorn makes again each second."""
        headers = self.server_state.default_headers
        if self._default_headers is not headers:
            self._default_headers, self._default_lines = headers, b"".join(b"%s: %s\r\n" % each for each in headers)
        return self._default_lines

    def work(self, answering: Any) -> None:
        """Runs the coroutine as a task of the server's, which waits for its end."""
        task: asyncio.Task[None] = self.loop.create_task(answering)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    def on_message_begin(self) -> None:
        """A request begins, as for both classes above; its ASGI scope is made once it is known that it needs one."""
        self._is_whole, self._in_head, self._head_size = False, True, 0
        self.url, self.expect_100_continue, self.headers = b"", False, []

    def on_headers_complete(self) -> None:
        """The body follows; of a hot path it goes to a cycle of ours."""
        path = self._hot.get(self.url)
        if path is None or not self._is_plain_post():
            self._make_scope()
            super().on_headers_complete()
            return
        self._in_head = False
        headers = dict(reversed(self.headers))  # of several of one name the first one counts
        before: RequestResponseCycle | HotCycle | None = self.cycle  # None before the first request
        self.cycle = cycle = HotCycle(self, path, headers)
        if before is None or before.response_complete:
            cycle.start()
        else:
            self.flow.pause_reading()
            self.pipeline.appendleft((cycle, self.app))  # type: ignore[arg-type]  # see ``cycle``
        cycle.admit(headers.get(b"content-length", b""))

    def _make_scope(self) -> None:
        url, expects, headers = self.url, self.expect_100_continue, self.headers
        HttpToolsProtocol.on_message_begin(self)
        self.url, self.expect_100_continue = url, expects
        self.headers += headers  # which the scope has, too

    def on_header(self, name: bytes, value: bytes) -> None:
        """Takes a header, as both classes above together: it is called most often of all."""
        self._head_size += len(name) + len(value)
        if self._head_size > LONGEST_HEAD:
            raise ValueError("the head is too long")
        name = name.lower()
        if name == b"expect" and value.lower() == b"100-continue":
            self.expect_100_continue = True
        self.headers.append((name, value))

    def _is_plain_post(self) -> bool:
        parser = self.parser
        is_post = parser.get_method() == b"POST" and parser.get_http_version() == "1.1"
        return is_post and not parser.should_upgrade() and not self.expect_100_continue

    def _start_asgi_task(self, cycle: RequestResponseCycle | HotCycle, app: Any) -> None:
        if isinstance(cycle, HotCycle):
            self.loop.call_soon(cycle.start)  # not now: of many pipelined ones each would begin within the one before
        else:
            super()._start_asgi_task(cycle, app)

    def on_body(self, body: bytes) -> None:
        """A piece of the body."""
        if isinstance(self.cycle, HotCycle):
            self.cycle.take(body)
        else:
            super().on_body(body)

    def on_message_complete(self) -> None:
        """The request is whole."""
        if isinstance(self.cycle, HotCycle):
            self._is_whole, self._in_head, self._head_size = True, True, 0
            self.cycle.end()
            self._rest_if_answered()
        else:
            super().on_message_complete()
