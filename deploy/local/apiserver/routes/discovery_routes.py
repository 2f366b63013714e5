"""Routes of discovery and OpenAPI documents."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from deploy.local.apiserver.apimachinery.errors import unauthorized
from deploy.local.apiserver.apimachinery.jsonvalue import JsonObject
from deploy.local.apiserver.authn.identity import Authenticator
from deploy.local.apiserver.discovery import documents, openapi
from deploy.local.apiserver.resources.catalog import Catalog
from deploy.local.apiserver.routes.responses import json_response


def discovery_routes(catalog: Catalog, authenticator: Authenticator) -> list[Route]:
    """The routes of all discovery and OpenAPI documents."""

    def route(path: str, answer: Callable[[Request], Response]) -> Route:
        async def checked(request: Request) -> Response:
            if authenticator.caller(request.headers.get("authorization", "")) is None:
                raise unauthorized()
            return answer(request)

        return Route(path, checked)

    def resources(request: Request) -> Response:
        names = request.path_params
        return json_response(documents.resource_list(catalog, names.get("group", ""), names["version"]))

    # Cached for the current catalog revision: hashing the documents is expensive.
    @lru_cache(maxsize=1)
    def index(_: int) -> JsonObject:
        return openapi.index(catalog)

    return [
        route("/api", lambda request: _root(catalog, request, core=True)),
        route("/apis", lambda request: _root(catalog, request, core=False)),
        route("/apis/{group}", lambda request: json_response(documents.group(catalog, request.path_params["group"]))),
        route("/api/{version}", resources),
        route("/apis/{group}/{version}", resources),
        route("/openapi/v2", _swagger),
        route("/openapi/v3", lambda _: json_response(index(catalog.revision))),
        route("/openapi/v3/{place:path}", lambda call: json_response(openapi.document(catalog, **call.path_params))),
    ]


def _root(catalog: Catalog, request: Request, core: bool) -> Response:
    # Two tests: clients may send the parameters in any order.
    if "as=APIGroupDiscoveryList" in request.headers.get("accept", "") and "v=v2" in request.headers["accept"]:
        response = json_response(documents.aggregated(catalog, core))
        response.headers["Content-Type"] = documents.AGGREGATED
        return response
    return json_response(documents.core_versions() if core else documents.group_list(catalog))


def _swagger(request: Request) -> Response:
    # Go clients request protobuf, and some accept nothing else.
    if openapi.V2_PROTOBUF in request.headers.get("accept", ""):
        return Response(openapi.V2_PROTOBUF_BODY, media_type=openapi.V2_PROTOBUF_ANSWER)
    return json_response(openapi.swagger())
