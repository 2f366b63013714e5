"""Routes that pass the framework by: its router, requests and responses cost more than a verb or a permit does.

Rules that hold here:

- A hot path is a POST to exactly its path; other methods are answered with 405, all other paths by the application.
- ``hot_protocol`` answers it right from the connection. What it leaves alone (``Expect``, an upgrade, HTTP/1.0) comes
  here as to any ASGI application, and is answered by the same handlers.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Final

import msgspec
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from protocol.wire.wire_batches import OFFER
from scheduler_plugin.web.bodies import BodyError, read_body

JSON: Final = "application/json"


class HotRequest(msgspec.Struct, frozen=True, gc=False):
    """A POST: what a hot path needs of it. ``content`` is the whole body, or what is wrong with it; ``address`` is the
    peer's IP address. ``knows_batches``: the client has said that it can ask for many VMs at once.
    """

    content: bytes | BodyError
    authorization: str | None = None
    address: str = ""
    knows_batches: bool = False

    def body(self) -> bytes:
        """The body. Raises ``BodyError``."""
        if isinstance(self.content, BodyError):
            raise self.content
        return self.content


class HotResponse(msgspec.Struct, frozen=True, gc=False):
    """An answer in JSON. A header ``connection`` ends the connection; names of headers are in lower case.

    ``rest`` is work that the answer did not wait for; it is awaited once the answer has been sent. A success shows that
    the client is one that the path is for, unless it does not ``authenticate``.
    """

    body: bytes
    status: int = 200
    headers: Mapping[str, str] = {}
    rest: Awaitable[None] | None = None
    authenticates: bool = True


Handler = Callable[[HotRequest], HotResponse | Awaitable[HotResponse]]
"""Answers at once where nothing has to be waited for: that spares a task."""


Admission = Callable[[str | None], HotResponse | None]
"""What is answered to a client that shows this ``Authorization``, before its body is read; None: it is let in."""


Introduction = Callable[[str | None, str], HotResponse | None]
"""The same for a client that has not shown yet who it is, with the IP address that it speaks from."""


def anyone(_: str | None, __: str = "") -> HotResponse | None:
    """Lets all clients in."""
    return None


@dataclass(frozen=True, slots=True)
class HotPath:
    """A handler, the ``longest`` body in bytes that it is given, and who is let in.

    ``introduction`` is asked besides ``admission`` until a request on the connection has succeeded.
    """

    handler: Handler
    longest: int
    admission: Admission = anyone
    introduction: Introduction = anyone

    def refusal(self, authorization: str | None, address: str) -> HotResponse | None:
        """Response to an unknown client before its body is read; None if it is admitted."""
        return self.admission(authorization) or self.introduction(authorization, address)

    def answer(self, request: HotRequest, refusal: HotResponse | None) -> HotResponse | Awaitable[HotResponse]:
        """The answer to a request whose admission was refused so, or was not."""
        return self.handler(request) if refusal is None else refusal


class HotPaths:
    """An ASGI application: hot ``paths`` before ``rest``."""

    def __init__(self, paths: Mapping[str, HotPath], rest: ASGIApp) -> None:
        self.by_url: Final = {path.encode(): found for path, found in paths.items()}
        self._paths = paths
        self._rest = rest

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers one request."""
        path = self._paths.get(scope["path"]) if scope["type"] == "http" else None
        if path is None:
            await self._rest(scope, receive, send)
            return
        is_post = scope["method"] == "POST"
        response, rest = await _answered(Request(scope, receive), path) if is_post else (_NOT_ALLOWED, None)
        await response(scope, receive, send)
        if rest is not None:
            await rest


async def _answered(request: Request, path: HotPath) -> tuple[Response, Awaitable[None] | None]:
    content: bytes | BodyError = b""
    shown = request.headers.get("authorization")
    address = request.client.host if request.client else ""
    refusal = path.refusal(shown, address)
    try:
        content = await read_body(request, path.longest) if refusal is None else b""
    except BodyError as error:
        content = error
    found = path.answer(HotRequest(content, shown, address, OFFER in request.headers), refusal)
    answer = found if isinstance(found, HotResponse) else await found
    return Response(answer.body, answer.status, answer.headers, media_type=JSON), answer.rest


_NOT_ALLOWED = PlainTextResponse("Method Not Allowed", 405, {"Allow": "POST"})
