"""Routes that only the leader answers.

A standby says who leads and ends the connection, so that the next one finds the leader.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

import msgspec

from scheduler_plugin.service.service import ActiveService, Service, StandingByError
from scheduler_plugin.web.http.hot_paths import Admission, Handler, HotRequest, HotResponse
from scheduler_plugin.web.models import Problem

_ENCODER: Final = msgspec.json.Encoder()
# The Service leads a new connection to the leader; this one would stay with the standby.
_ELSEWHERE: Final = {"retry-after": "0", "connection": "close"}


def by_leader(
    desk: ActiveService, answer: Callable[[Service, HotRequest], HotResponse | Awaitable[HotResponse]]
) -> Handler:
    """Run ``answer`` for the active service; 503 while another process leads."""

    def handle(request: HotRequest) -> HotResponse | Awaitable[HotResponse]:
        try:
            service = desk.acting()
        except StandingByError as error:
            return _elsewhere(error)
        return answer(service, request)

    return handle


def leading(desk: ActiveService) -> Admission:
    """Refuse clients while another process leads, before their bodies are read in vain."""

    def lead(_: str | None) -> HotResponse | None:
        try:
            desk.acting()
        except StandingByError as error:
            return _elsewhere(error)
        return None

    return lead


def _elsewhere(error: StandingByError) -> HotResponse:
    return HotResponse(_ENCODER.encode(Problem(str(error))), 503, _ELSEWHERE)
