"""The agents' side over HTTP: decode, ask the service, encode. No decisions here (S4.4, B.1).

200 with a ``PluginResponse``; otherwise ``{"error": ...}`` with 400 (malformed), 401, 403, 404 (unknown pod) or 503
with ``Retry-After``.
"""

from __future__ import annotations

import math
from typing import Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from protocol.codec import MalformedRequestError, decode_request, encode_response
from scheduler_plugin.service import RefusedError, Service
from scheduler_plugin.web.bodies import BodyError, read_body

LONGEST_BODY: Final = 64 * 1024
"""An agent's request is a few hundred bytes; anything longer is not one."""

_ENCODER: Final = msgspec.json.Encoder()


class AgentRoutes:
    """``POST /`` over one service."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def request(self, request: Request) -> Response:
        """One agent's request of any wire version."""
        try:
            wire = decode_request(await read_body(request, LONGEST_BODY))
            granted = await self._service.permit(wire, request.headers.get("authorization"))
            answer = encode_response(wire.version, granted.response, granted.slot_size)
        except MalformedRequestError as error:
            return self._refused(RefusedError(400, str(error)))
        except BodyError as error:
            return self._refused(RefusedError(error.status, str(error)))
        except RefusedError as refusal:
            return self._refused(refusal)
        return Response(answer, media_type="application/json")

    def _refused(self, refusal: RefusedError) -> Response:
        self._service.context.telemetry.refusals.labels(str(refusal.status)).inc()
        headers = {}
        if refusal.retry_after is not None:
            headers["Retry-After"] = str(math.ceil(refusal.retry_after))
        if refusal.status == 401:
            headers["WWW-Authenticate"] = "Bearer"
        body = _ENCODER.encode({"error": str(refusal)})
        return Response(body, refusal.status, headers, media_type="application/json")
