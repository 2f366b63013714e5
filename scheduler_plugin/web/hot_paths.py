"""Routes that pass the framework by: its router and middleware cost more than a verb or a permit does.

Rules that hold here:

- A hot path is a POST to exactly its path; other methods are answered with 405, all other paths by the application.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

Handler = Callable[[Request], Awaitable[Response]]


class HotPaths:
    """An ASGI application: ``handlers`` by their path, before ``rest``."""

    def __init__(self, handlers: Mapping[str, Handler], rest: ASGIApp) -> None:
        self._handlers = handlers
        self._rest = rest

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers one request."""
        handler = self._handlers.get(scope["path"]) if scope["type"] == "http" else None
        if handler is None:
            await self._rest(scope, receive, send)
            return
        is_post = scope["method"] == "POST"
        response = await handler(Request(scope, receive)) if is_post else _NOT_ALLOWED
        await response(scope, receive, send)


_NOT_ALLOWED = PlainTextResponse("Method Not Allowed", 405, {"Allow": "POST"})
