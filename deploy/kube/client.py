"""Kubernetes API client of the local runtime, the VM controllers and the command line.

Every call has a timeout and raises one of the two ``ApiError`` classes. The client does not retry, because its callers
are level-triggered.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Final

import httpx2 as httpx

from deploy.kube.port_forward import PortForward
from protocol.kubernetes.api import ApiCall, ApiRefusedError, RawApi, Tolerating, readable_error, unknown
from protocol.kubernetes.objects import Json
from protocol.kubernetes.pages import Page, UnreadableAnswerError, read_object, read_page
from protocol.kubernetes.refusals import RefusalKind, read_refusal
from protocol.kubernetes.resources import MERGE_PATCH, Resource
from protocol.messages import ObjectName
from protocol.runtime.clock import SystemClock
from protocol.runtime.credentials import Credentials, for_command, login_of
from protocol.runtime.kubernetes.direct_api import DirectApi
from protocol.runtime.kubernetes.http_api import HttpApi, http_client
from protocol.runtime.kubernetes.pool import ConnectionPool
from protocol.units import Seconds

NAME: Final = "autoscale"
_JSON: Final = "application/json"
_TIMEOUT: Final = Seconds(15.0)
# For the whole response, which may be large, over a slow connection.
_LIST_TIMEOUT: Final = Seconds(30.0)
_FORWARD_TIMEOUT: Final = Seconds(10.0)
_CONNECTIONS: Final = 64
_LIMITS: Final = httpx.Limits(max_connections=_CONNECTIONS, max_keepalive_connections=32)


class ApiClient:
    """Client of one API server. Close it when done (``async with``)."""

    def __init__(self, api: RawApi, forward: PortForward | None = None) -> None:
        self.api = api
        self._forward = forward

    async def __aenter__(self) -> ApiClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.api.aclose()

    async def get(self, kind: Resource, name: ObjectName) -> Json:
        """One object. Raises ``ApiRefusedError`` of kind ``NOT_FOUND`` if there is none."""
        return await self._call("GET", kind.path(name.namespace, name.name))

    async def list(
        self, kind: Resource, namespace: str = "", label_selector: str = "", field_selector: str = ""
    ) -> Page:
        """All objects of a kind, in one page."""
        selectors = {"labelSelector": label_selector, "fieldSelector": field_selector}
        return await self._page(kind.path(namespace), {name: value for name, value in selectors.items() if value})

    async def pages(self, kind: Resource, limit: int) -> AsyncIterator[Page]:
        """All objects of a kind, in pages of at most ``limit`` objects, to save memory."""
        # The continue token decides: the server may return fewer than the limit before the last page.
        query = {"limit": str(limit)}
        while True:
            page = await self._page(kind.path(), query)
            yield page
            if not page.continue_token:
                return
            query["continue"] = page.continue_token

    async def revision(self, kind: Resource) -> str:
        """The current resourceVersion of a list of the kind."""
        # A list with limit 1 is the cheapest request that returns it.
        return (await self._page(kind.path(), {"limit": "1"}, _TIMEOUT)).version

    async def _page(self, path: str, query: Mapping[str, str], time_limit: Seconds = _LIST_TIMEOUT) -> Page:
        call = ApiCall("GET", path, time_limit, query=query)
        body, _ = await self._raw(call)
        try:
            return read_page(body)
        except UnreadableAnswerError as error:
            raise unknown(call, error) from error

    async def create(self, kind: Resource, namespace: str, body: Json) -> Json:
        """Create the object and return it as stored."""
        return await self._call("POST", kind.path(namespace), body)

    async def ensure(self, kind: Resource, namespace: str, body: Json) -> None:
        """Create the object unless it exists."""
        with Tolerating(RefusalKind.ALREADY_EXISTS):
            await self.create(kind, namespace, body)

    async def try_create(self, kind: Resource, namespace: str, body: Json) -> Json:
        """Dry run of ``create`` with webhooks: return the object as it would be stored. Raises like ``create``."""
        return await self._call("POST", kind.path(namespace), body, query={"dryRun": "All"})

    async def merge_patch(self, kind: Resource, name: ObjectName, body: Json, subresource: str = "") -> Json:
        """Merge-patch the object, or its subresource, and return it as stored."""
        return await self._call("PATCH", kind.path(name.namespace, name.name, subresource), body, MERGE_PATCH)

    async def post_subresource(self, kind: Resource, name: ObjectName, subresource: str, body: Json) -> Json:
        """POST to a subresource such as ``token`` or ``binding``."""
        return await self._call("POST", kind.path(name.namespace, name.name, subresource), body)

    async def delete(
        self, kind: Resource, name: ObjectName, uid: str = "", grace: int | None = None, version: str = ""
    ) -> None:
        """Delete the object, with ``uid`` and ``version`` (resourceVersion) as preconditions if given.

        ``grace`` is in seconds; 0 deletes it immediately.
        """
        options: Json = {"apiVersion": "v1", "kind": "DeleteOptions"}
        if uid:
            # The server responds with 409 if they differ from the stored object.
            options["preconditions"] = {"uid": uid, **({"resourceVersion": version} if version else {})}
        if grace is not None:
            options["gracePeriodSeconds"] = grace
        await self._call("DELETE", kind.path(name.namespace, name.name), options)

    async def raw_get(self, path: str) -> bytes:
        """GET any path of the API server, such as ``/readyz`` or a pod proxy."""
        return (await self.raw_response(path))[0]

    async def pod_get(self, pod: ObjectName, port: int, path: str) -> bytes:
        """GET from a pod through port-forward, so that the request arrives from the pod's loopback address.

        Without port-forward it uses the pod proxy, whose requests our programs do not trust.
        """
        if self._forward is None:
            # The pod proxy connects from the API server, without the caller's identity.
            return await self.raw_get(f"/api/v1/namespaces/{pod.namespace}/pods/{pod.name}:{port}/proxy{path}")
        status, body = await self._forward.get(pod, port, path, _FORWARD_TIMEOUT)
        if 200 <= status < 300:
            return body
        raise readable_error(read_refusal(status, body))

    async def raw_response(self, path: str) -> tuple[bytes, Mapping[str, str]]:
        """GET any path of the API server; return the response's body and headers."""
        return await self._raw(ApiCall("GET", path, _TIMEOUT))

    async def _call(
        self,
        method: str,
        path: str,
        body: Json | None = None,
        content_type: str = _JSON,
        query: Mapping[str, str] | None = None,
    ) -> Json:
        call = ApiCall(method, path, _TIMEOUT, query or {}, body, content_type)
        content, _ = await self._raw(call)
        try:
            # A few subresources return no body.
            return read_object(content) if content else {}
        except UnreadableAnswerError as error:
            raise unknown(call, error) from error

    async def _raw(self, call: ApiCall) -> tuple[bytes, Mapping[str, str]]:
        try:
            return await self.api.raw(call)
        except ApiRefusedError as error:
            raise readable_error(error.refusal) from None


def client_from_kubeconfig(path: Path, *, is_busy: bool = False) -> ApiClient:
    """A client for the current context of a kubeconfig. Raises ``CredentialsError``.

    It ignores proxy variables and runs credential plug-ins, so use it only in interactive commands.
    """
    return client_of(for_command(login_of([path]), SystemClock(), environment={}), is_busy=is_busy)


def client_of(credentials: Credentials, *, is_busy: bool = False) -> ApiClient:
    """A client for one API server. ``is_busy``: uses less CPU per request, but returns no response headers."""
    token = credentials.token
    api: RawApi
    if is_busy:
        # is_patient: a thousand pods may report at once, so calls wait for a connection without a timeout.
        api = DirectApi(ConnectionPool(credentials, _CONNECTIONS), token, NAME, is_patient=True)
    else:
        api = HttpApi(http_client(credentials, _LIMITS, NAME), token)
    forward = PortForward(credentials.server, credentials.tls, token, credentials.headers, credentials.proxy)
    return ApiClient(api, forward)
