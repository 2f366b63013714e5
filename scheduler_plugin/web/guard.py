"""The extender's own bearer token, where the settings name a file that holds one."""

from __future__ import annotations

import hmac
from pathlib import Path
from typing import Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from protocol.runtime.credentials import CredentialsError, FileToken
from scheduler_plugin.service import Desk
from scheduler_plugin.web.hot_paths import Handler
from scheduler_plugin.web.models import Problem

_REFUSAL: Final = msgspec.json.encode(Problem("a bearer token is needed"))


def guarded(handler: Handler, desk: Desk) -> Handler:
    """The handler, behind the token of the settings in force."""
    tokens: dict[str, FileToken] = {}

    async def guard(request: Request) -> Response:
        context = desk.context
        path = context.feed.settings.extender_token_file
        if path is not None and not _shows(request, tokens.setdefault(path, FileToken(Path(path), context.clock))):
            return Response(_REFUSAL, 401, media_type="application/json")
        return await handler(request)

    return guard


def _shows(request: Request, token: FileToken) -> bool:
    try:
        expected = token()
    except CredentialsError:
        return False
    shown = request.headers.get("authorization", "").removeprefix("Bearer ")
    return bool(expected) and hmac.compare_digest(shown.encode(), expected.encode())
