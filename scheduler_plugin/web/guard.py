"""The extender's own bearer token, where the settings name a file that holds one."""

from __future__ import annotations

import hmac
from collections.abc import Awaitable
from pathlib import Path
from typing import Final

import msgspec

from protocol.runtime.credentials import CredentialsError, FileToken
from scheduler_plugin.service import Desk
from scheduler_plugin.web.hot_paths import Handler, HotRequest, HotResponse
from scheduler_plugin.web.models import Problem

_REFUSAL: Final = HotResponse(msgspec.json.encode(Problem("a bearer token is needed")), 401)


def guarded(handler: Handler, desk: Desk) -> Handler:
    """The handler, behind the token of the settings in force."""
    tokens: dict[str, FileToken] = {}

    def guard(request: HotRequest) -> HotResponse | Awaitable[HotResponse]:
        context = desk.context
        path = context.feed.settings.extender_token_file
        if path is not None and not _shows(request, tokens.setdefault(path, FileToken(Path(path), context.clock))):
            return _REFUSAL
        return handler(request)

    return guard


def _shows(request: HotRequest, token: FileToken) -> bool:
    try:
        expected = token()
    except CredentialsError:
        return False
    shown = (request.authorization or "").removeprefix("Bearer ")
    return bool(expected) and hmac.compare_digest(shown.encode(), expected.encode())
