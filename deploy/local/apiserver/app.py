"""The HTTP face of the API server: which path leads where. Every ``StatusError`` becomes a ``Status``.

Everything but health and version needs a known credential; without one it is a 401.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from deploy.local.apiserver.apimachinery.errors import StatusError
from deploy.local.apiserver.authn.identity import Authenticator
from deploy.local.apiserver.discovery import documents
from deploy.local.apiserver.registry.api import Api
from deploy.local.apiserver.routes.discovery_routes import DiscoveryRoutes
from deploy.local.apiserver.routes.resource_routes import ApiServerSettings, ResourceRoutes
from deploy.local.apiserver.routes.responses import json_response, refusal

_log = logging.getLogger(__name__)

_ALL_METHODS: Final = ["GET", "POST", "PUT", "PATCH", "DELETE"]


async def _healthy(_: Request) -> Response:
    return PlainTextResponse("ok")


async def _version(_: Request) -> Response:
    return json_response(documents.VERSION)


async def _refused(_: Request, error: Exception) -> Response:
    if not isinstance(error, StatusError):
        raise error
    return refusal(error)


async def _broken(request: Request, error: Exception) -> Response:
    _log.error("a request broke", extra={"method": request.method, "path": request.url.path}, exc_info=error)
    return refusal(StatusError(500, "InternalError", f"Internal error occurred: {error!r}"))


def create_app(
    api: Api, authenticator: Authenticator, settings: ApiServerSettings, closing: asyncio.Event
) -> Starlette:
    """The application over one ``api``. ``closing``, once set, ends every watch."""
    # Starlette passes a request to a function or method; it would take an instance for an ASGI application.
    resources: Callable[[Request], Awaitable[Response]] = ResourceRoutes(api, authenticator, settings, closing).__call__
    discover = DiscoveryRoutes(api, authenticator)
    return Starlette(
        routes=[
            Route("/healthz", _healthy),
            Route("/readyz", _healthy),
            Route("/livez", _healthy),
            Route("/version", _version),
            Route("/api", discover.core),
            Route("/apis", discover.groups),
            Route("/apis/{group}", discover.group),
            Route("/api/{version}", discover.resources),
            Route("/apis/{group}/{version}", discover.resources),
            Route("/openapi/v2", discover.swagger),
            Route("/openapi/v3", discover.openapi_index),
            Route("/openapi/v3/{place:path}", discover.openapi_document),
            # Kinds come and go with their definitions, so one route takes all other paths.
            Route("/{path:path}", resources, methods=_ALL_METHODS),
        ],
        exception_handlers={StatusError: _refused, Exception: _broken},
    )
