"""Routes that only the leader answers.

A standby says who leads and ends the connection, so that the next one finds the leader.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from scheduler_plugin.service import Desk, Service, StandingByError
from scheduler_plugin.web.hot_paths import Handler
from scheduler_plugin.web.models import Problem

_ENCODER: Final = msgspec.json.Encoder()
_ELSEWHERE: Final = {"Retry-After": "0", "Connection": "close"}


def by_leader(desk: Desk, answer: Callable[[Service, Request], Awaitable[Response]]) -> Handler:
    """What ``answer`` says for the service that acts; 503 while another process leads."""

    async def handle(request: Request) -> Response:
        try:
            service = desk.acting()
        except StandingByError as error:
            body = _ENCODER.encode(Problem(str(error)))
            return Response(body, 503, _ELSEWHERE, media_type="application/json")
        return await answer(service, request)

    return handle
