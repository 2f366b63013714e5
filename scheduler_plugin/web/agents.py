"""The agents' side over HTTP: decode, ask the service, encode. No decisions here (S4.4, B.1).

200 with a ``PluginResponse``; otherwise ``{"error": ...}`` with 400 (malformed), 401, 403, 404 (unknown pod) or 503
with ``Retry-After``.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable
from typing import Final

import msgspec

from protocol.codec import MalformedRequestError, WireRequest, decode_request, encode_response
from scheduler_plugin.service import Granted, RefusedError, Service
from scheduler_plugin.web.bodies import BodyError
from scheduler_plugin.web.hot_paths import HotRequest, HotResponse

LONGEST_BODY: Final = 64 * 1024
"""An agent's request is a few hundred bytes; anything longer is not one."""

_ENCODER: Final = msgspec.json.Encoder()


class AgentRoutes:
    """``POST /`` over one service."""

    def __init__(self, service: Service) -> None:
        self._permits = service.permits
        self._refusals = service.context.telemetry.refusals

    def request(self, request: HotRequest) -> HotResponse | Awaitable[HotResponse]:
        """One agent's request of any wire version."""
        try:
            wire = decode_request(request.body())
            found = self._permits.ask(wire, request.authorization, request.address)
        except MalformedRequestError as error:
            return self._refused(RefusedError(400, str(error)))
        except BodyError as error:
            return self._refused(RefusedError(error.status, str(error)))
        except RefusedError as refusal:
            return self._refused(refusal)
        return _answer(wire, found) if isinstance(found, Granted) else self._later(wire, found)

    async def _later(self, wire: WireRequest, waiting: Awaitable[Granted]) -> HotResponse:
        try:
            return _answer(wire, await waiting)
        except RefusedError as refusal:
            return self._refused(refusal)

    def _refused(self, refusal: RefusedError) -> HotResponse:
        self._refusals.labels(str(refusal.status)).inc()
        headers = {}
        if refusal.retry_after is not None:
            headers["retry-after"] = str(math.ceil(refusal.retry_after))
            if not refusal.retry_after:  # the next connection leads to the scheduler that leads by then
                headers["connection"] = "close"
        if refusal.status == 401:
            headers["www-authenticate"] = "Bearer"
        return HotResponse(_ENCODER.encode({"error": str(refusal)}), refusal.status, headers)


def _answer(wire: WireRequest, granted: Granted) -> HotResponse:
    return HotResponse(encode_response(wire.version, granted.response, granted.slot_size))
