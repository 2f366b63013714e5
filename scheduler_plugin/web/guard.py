"""The extender's own bearer token, if the settings name a file that holds one."""

from __future__ import annotations

import hmac
from pathlib import Path
from typing import Final

import msgspec

from protocol.runtime.credentials import CredentialsError, FileToken
from scheduler_plugin.service.service import ActiveService
from scheduler_plugin.texts import refusals
from scheduler_plugin.web.hot_paths import Admission, HotResponse
from scheduler_plugin.web.models import Problem

_REFUSAL: Final = HotResponse(msgspec.json.encode(Problem(refusals.BEARER_NEEDED)), 401)


def guarded(desk: ActiveService, admission: Admission) -> Admission:
    """Admit callers with the token of the settings in force whom ``admission`` admits as well."""
    tokens: dict[str, FileToken] = {}

    def guard(authorization: str | None) -> HotResponse | None:
        context = desk.context
        # Read at every call: the settings may name another file at any time.
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
    # A file that cannot be read lets nobody in.
    except CredentialsError:
        return False
    token_in_header = (authorization or "").removeprefix("Bearer ")
    # An empty file must not let in callers without a token. The comparison takes the same time for every token.
    return bool(expected) and hmac.compare_digest(token_in_header.encode(), expected.encode())
