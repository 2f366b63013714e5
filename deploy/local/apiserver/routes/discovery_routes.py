"""The routes of discovery and of the OpenAPI documents."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from deploy.local.apiserver.apimachinery.errors import unauthorized
from deploy.local.apiserver.apimachinery.jsonvalue import JsonObject
from deploy.local.apiserver.authn.identity import Authenticator
from deploy.local.apiserver.discovery import documents, openapi
from deploy.local.apiserver.registry.api import Api
from deploy.local.apiserver.routes.responses import json_response


class DiscoveryRoutes:
    """Discovery documents, and the version."""

    def __init__(self, api: Api, authenticator: Authenticator) -> None:
        self._catalog = api.catalog
        self._authenticator = authenticator
        self._openapi_index: tuple[int, JsonObject] = (-1, {})  # cached for one catalog revision: hashing is costly

    def _check(self, request: Request) -> None:
        if self._authenticator.caller(request.headers.get("authorization", "")) is None:
            raise unauthorized()

    async def core(self, request: Request) -> Response:
        """``/api``."""
        return self._root(request, core=True)

    async def groups(self, request: Request) -> Response:
        """``/apis``."""
        return self._root(request, core=False)

    def _root(self, request: Request, core: bool) -> Response:
        self._check(request)
        # Clients may send the parameters in any order, so they are looked for one by one.
        if "as=APIGroupDiscoveryList" in request.headers.get("accept", "") and "v=v2" in request.headers["accept"]:
            response = json_response(documents.aggregated(self._catalog, core))
            response.headers["Content-Type"] = documents.AGGREGATED
            return response
        return json_response(documents.core_versions() if core else documents.group_list(self._catalog))

    async def group(self, request: Request) -> Response:
        """``/apis/GROUP``."""
        self._check(request)
        return json_response(documents.group(self._catalog, request.path_params["group"]))

    async def resources(self, request: Request) -> Response:
        """``/api/v1`` and ``/apis/GROUP/VERSION``."""
        self._check(request)
        names = request.path_params
        return json_response(documents.resource_list(self._catalog, names.get("group", ""), names["version"]))

    async def openapi_index(self, request: Request) -> Response:
        """``/openapi/v3``."""
        self._check(request)
        if self._openapi_index[0] != self._catalog.revision:
            self._openapi_index = self._catalog.revision, openapi.index(self._catalog)
        return json_response(self._openapi_index[1])

    async def openapi_document(self, request: Request) -> Response:
        """``/openapi/v3/PLACE``."""
        self._check(request)
        return json_response(openapi.document(self._catalog, request.path_params["place"]))

    async def swagger(self, request: Request) -> Response:
        """``/openapi/v2``, as JSON or as protobuf."""
        self._check(request)
        # Go clients ask for protobuf, and some accept nothing else here.
        if openapi.V2_PROTOBUF in request.headers.get("accept", ""):
            return Response(openapi.V2_PROTOBUF_BODY, media_type=openapi.V2_PROTOBUF_ANSWER)
        return json_response(openapi.swagger())
