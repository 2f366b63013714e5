"""The agents' side over HTTP: decode, ask the service, encode. No decisions here (S4.4, B.1).

200 with a ``PluginResponse``; otherwise ``{"error": ...}`` with 400 (malformed), 401, 403, 404 (unknown pod) or 503
with ``Retry-After``.
"""

from __future__ import annotations

import math
from typing import Final

import msgspec

from protocol.codec import MalformedRequestError, decode_request, encode_response
from scheduler_plugin.service import RefusedError, Service
from scheduler_plugin.web.bodies import BodyError
from scheduler_plugin.web.hot_paths import HotRequest, HotResponse

LONGEST_BODY: Final = 64 * 1024
"""An agent's request is a few hundred bytes; anything longer is not one."""

_ENCODER: Final = msgspec.json.Encoder()


class AgentRoutes:
    """``POST /`` over one service."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def request(self, request: HotRequest) -> HotResponse:
        """One agent's request of any wire version."""
        try:
            wire = decode_request(request.body())
            granted = await self._service.permit(wire, request.authorization, request.address)
            answer = encode_response(wire.version, granted.response, granted.slot_size)
        except MalformedRequestError as error:
            return self._refused(RefusedError(400, str(error)))
        except BodyError as error:
            return self._refused(RefusedError(error.status, str(error)))
        except RefusedError as refusal:
            return self._refused(refusal)
        return HotResponse(answer)

    def _refused(self, refusal: RefusedError) -> HotResponse:
        self._service.context.telemetry.refusals.labels(str(refusal.status)).inc()
        headers = {}
        if refusal.retry_after is not None:
            headers["retry-after"] = str(math.ceil(refusal.retry_after))
            if not refusal.retry_after:  # the next connection leads to the scheduler that leads by then
                headers["connection"] = "close"
        if refusal.status == 401:
            headers["www-authenticate"] = "Bearer"
        return HotResponse(_ENCODER.encode({"error": str(refusal)}), refusal.status, headers)
