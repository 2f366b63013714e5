"""Routes that only the leader answers.

A standby says who leads and ends the connection, so that the next one finds the leader.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

import msgspec

from scheduler_plugin.service import Desk, Service, StandingByError
from scheduler_plugin.web.hot_paths import Handler, HotRequest, HotResponse
from scheduler_plugin.web.models import Problem

_ENCODER: Final = msgspec.json.Encoder()
_ELSEWHERE: Final = {"retry-after": "0", "connection": "close"}


def by_leader(desk: Desk, answer: Callable[[Service, HotRequest], HotResponse | Awaitable[HotResponse]]) -> Handler:
    """What ``answer`` says for the service that acts; 503 while another process leads."""

    def handle(request: HotRequest) -> HotResponse | Awaitable[HotResponse]:
        try:
            service = desk.acting()
        except StandingByError as error:
            return HotResponse(_ENCODER.encode(Problem(str(error))), 503, _ELSEWHERE)
        return answer(service, request)

    return handle
