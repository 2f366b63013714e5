"""Routes that bypass FastAPI: its routing and validation cost more than a verb or a permit.

A hot path serves POST requests to exactly its path; other methods get 405, other paths go to the application.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Final, TypeVar

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from protocol.field_errors import field_message
from protocol.runtime.serving.bounded_protocol import authenticate, is_authenticated
from protocol.wire.wire_batches import OFFER
from scheduler_plugin.web.models import Problem

T = TypeVar("T")

LOG: Final = logging.getLogger("autoscale.serving")

JSON: Final = "application/json"


class BodyError(ValueError):
    """The body is unusable; ``status`` is the response's."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class HotRequest(msgspec.Struct, frozen=True, gc=False):
    """A POST request.

    ``content`` is the whole body, or its error. ``address`` is the peer's IP address. ``knows_batches``: the client can
    send batches.
    """

    content: bytes | BodyError
    authorization: str | None = None
    address: str = ""
    knows_batches: bool = False

    def body(self) -> bytes:
        """The body. Raises ``BodyError``."""
        if isinstance(self.content, BodyError):
            # A copy: a stored error would keep the frames through which it was raised.
            raise BodyError(self.content.status, str(self.content))
        return self.content


class HotResponse(msgspec.Struct, frozen=True, gc=False):
    """A JSON response. A ``connection`` header closes the connection; header names are in lower case.

    ``rest`` is work that the response does not wait for; it is awaited after the response was sent. A success marks the
    client as known, unless it does not ``authenticate``.
    """

    body: bytes
    status: int = 200
    headers: Mapping[str, str] = {}
    rest: Awaitable[None] | None = None
    authenticates: bool = True


Handler = Callable[[HotRequest], HotResponse | Awaitable[HotResponse]]
"""Returns the response itself if nothing has to be awaited, which saves a task."""


Admission = Callable[[str | None], HotResponse | None]
"""Response to a client with this ``Authorization``, before its body is read; None: admitted."""


Precheck = Callable[[str | None, str], HotResponse | None]
"""Like ``Admission``, for a client that has not authenticated yet, with its IP address."""


def anyone(_: str | None, __: str = "") -> HotResponse | None:
    """Admit all clients."""
    return None


@dataclass(frozen=True, slots=True)
class HotPath:
    """A handler, its ``longest`` body in bytes, and its admission.

    ``precheck`` applies in addition to ``admission`` until a request on the connection has succeeded.
    """

    handler: Handler
    longest: int
    admission: Admission = anyone
    precheck: Precheck = anyone


class HotPaths:
    """ASGI application: hot ``paths`` before ``rest``."""

    def __init__(self, paths: Mapping[str, HotPath], rest: ASGIApp) -> None:
        self.paths: Final = paths
        self._rest = rest

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        path = self.paths.get(scope["path"]) if scope["type"] == "http" else None
        if path is None:
            await self._rest(scope, receive, send)
            return
        if scope["method"] != "POST":
            await _NOT_ALLOWED(scope, receive, send)
            return
        request, answer = Request(scope, receive), _ENDING
        try:
            answer = await _respond(request, path)
        except Exception:
            LOG.exception("a request failed")
            answer = _FAILED
        finally:
            # Also when cancelled, so that clients try the next leader immediately.
            if answer.status < 400 and answer.authenticates:
                authenticate(request)
            await Response(answer.body, answer.status, answer.headers, media_type=JSON)(scope, receive, send)
        if answer.rest is not None:
            await answer.rest


async def _respond(request: Request, path: HotPath) -> HotResponse:
    authorization = request.headers.get("authorization")
    address = request.client.host if request.client else ""
    refusal = path.admission(authorization)
    if refusal is None and not is_authenticated(request):
        refusal = path.precheck(authorization, address)
    if refusal is not None:
        return refusal
    content: bytes | BodyError
    try:
        content = await read_body(request, path.longest)
    except BodyError as error:
        # Its traceback holds the pieces of the body, and this frame.
        content = error.with_traceback(None)
    answer = path.handler(HotRequest(content, authorization, address, OFFER in request.headers))
    return answer if isinstance(answer, HotResponse) else await answer


async def read_body(request: Request, longest: int) -> bytes:
    """The body. Raises ``BodyError`` if it has more than ``longest`` bytes or ends early."""
    declared = request.headers.get("content-length", "")
    # Check the length first: ``int`` is quadratic in the digits, and rejects thousands of them.
    if declared.isascii() and declared.isdigit() and (len(declared) > len(str(longest)) or int(declared) > longest):
        raise too_long(longest)
    chunks, size = [], 0
    try:
        async for chunk in request.stream():
            size += len(chunk)
            # A chunked body declares no length, and a declared one may be wrong.
            if size > longest:
                raise too_long(longest)
            chunks.append(chunk)
    except ClientDisconnect:
        raise BodyError(400, "the body is incomplete") from None
    return b"".join(chunks)


def decoded(decode: Callable[[bytes], T], body: bytes) -> T:
    """The decoded body. Raises ``BodyError`` with the path of the bad field."""
    try:
        return decode(body)
    # Deep nesting exceeds Python's stack.
    except (ValueError, RecursionError) as error:
        raise BodyError(400, field_message(error)) from None


def too_long(longest: int) -> BodyError:
    """Error for a body of more than ``longest`` bytes."""
    return BodyError(413, f"a request has at most {longest} bytes")


_NOT_ALLOWED: Final = PlainTextResponse("Method Not Allowed", 405, {"Allow": "POST"})
_FAILED: Final = HotResponse(
    msgspec.json.encode(Problem("internal error; see the program log")), 500, {"connection": "close"}
)
_ENDING: Final = HotResponse(
    msgspec.json.encode(Problem("shutting down; retry")), 503, {"retry-after": "0", "connection": "close"}
)
"""For requests that are still open at shutdown."""
