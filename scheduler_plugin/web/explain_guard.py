"""Access control for explanations, in front of an application whose metrics and probes need no token."""

from __future__ import annotations

from http import HTTPStatus
from pathlib import Path
from typing import Final

from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from protocol.kubernetes import access_reviews
from protocol.kubernetes.api import ApiCall, ApiError, KubernetesApi
from protocol.kubernetes.objects import JsonObject
from protocol.messages import ObjectName
from protocol.runtime.clock import Clock
from protocol.runtime.explaining.explain_access import (
    AUDIENCE,
    Caller,
    ExplainAccess,
    ReviewedAccess,
    ReviewError,
    TokenInFile,
)
from protocol.runtime.serving.bounded_protocol import authenticate
from protocol.units import Seconds
from scheduler_plugin.databases import scope_of

OPEN: Final = frozenset({"/metrics", "/healthz", "/readyz", "/openapi.json"})
"""Paths without a token, for Prometheus and the kubelet."""

TIMEOUT: Final = Seconds(3.0)
_HEADERS: Final = {
    HTTPStatus.UNAUTHORIZED: {"WWW-Authenticate": "Bearer"},
    HTTPStatus.SERVICE_UNAVAILABLE: {"Retry-After": "1"},
}


class GuardedExplanations:
    """ASGI application: ``app`` for callers that ``access`` allows to read the databases of the path."""

    def __init__(self, app: ASGIApp, access: ExplainAccess) -> None:
        self._app, self._access = app, access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        # ``lifespan`` events have no path.
        if scope["type"] == "http" and scope["path"] not in OPEN:
            request = Request(scope)
            denial = await self._access.denial(_caller(request), scope_in(scope["path"]))
            if denial is not None:
                answer = JSONResponse({"error": denial.error}, denial.status, _HEADERS.get(denial.status))
                await answer(scope, receive, send)
                return
            # Only now: a connection without a valid token is closed first when slots are short.
            authenticate(request)
        await self._app(scope, receive, send)


def explain_access(token_file: Path | None, api: KubernetesApi, clock: Clock) -> ExplainAccess:
    """Access by ``--explain-token``; without it the API server decides."""
    if token_file is not None:
        return TokenInFile(token_file)

    async def review(path: str, body: JsonObject) -> JsonObject:
        try:
            return await api.call(ApiCall("POST", path, TIMEOUT, body=body))
        except ApiError as error:
            raise ReviewError(str(error)) from None

    return ReviewedAccess(review, clock, AUDIENCE)


def scope_in(path: str) -> access_reviews.Scope:
    """The databases that a path refers to.

    >>> scope_in("/explain/shop/db").namespace, scope_in("/explain/shop/pod/pg-1").of_pods, scope_in("/nodes").namespace
    ('shop', True, '')
    """
    parts = path.split("/", 3)
    # Without a namespace: all of them.
    is_about_one = len(parts) > 3 and parts[1] == "explain"
    return scope_of(ObjectName(parts[2], parts[3])) if is_about_one else access_reviews.Scope()


def _caller(request: Request) -> Caller:
    server = request.scope.get("server") or ("",)
    peer = request.client.host if request.client else ""
    authorization, host = (request.headers.get(name, "") for name in ("authorization", "host"))
    return Caller(authorization, peer, str(server[0]), host)
