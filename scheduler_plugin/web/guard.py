"""The extender's own bearer token, where the settings name a file that holds one."""

from __future__ import annotations

import hmac
from pathlib import Path
from typing import Final

import msgspec

from protocol.runtime.credentials import CredentialsError, FileToken
from scheduler_plugin.service import ActiveService
from scheduler_plugin.web.http.hot_paths import Admission, HotResponse
from scheduler_plugin.web.models import Problem

_REFUSAL: Final = HotResponse(msgspec.json.encode(Problem("a bearer token is needed")), 401)


def guarded(desk: ActiveService, admission: Admission) -> Admission:
    """Lets in who shows the token of the settings in force, and is let in by ``admission``."""
    tokens: dict[str, FileToken] = {}

    def guard(authorization: str | None) -> HotResponse | None:
        context = desk.context
        path = context.feed.settings.extender_token_file
        if path is not None and not _shows(
            authorization, tokens.setdefault(path, FileToken(Path(path), context.clock))
        ):
            return _REFUSAL
        return admission(authorization)

    return guard


def _shows(authorization: str | None, token: FileToken) -> bool:
    try:
        expected = token()
    except CredentialsError:
        return False
    shown = (authorization or "").removeprefix("Bearer ")
    return bool(expected) and hmac.compare_digest(shown.encode(), expected.encode())
