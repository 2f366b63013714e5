"""The API server in the test's own event loop, watches included, without a socket. It can be made unavailable."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator

import httpx2 as httpx

from deploy.kube.client import ApiClient
from deploy.local.apiserver.apimachinery.environment import Environment, system_environment
from deploy.local.apiserver.registry.api import RequestTarget
from deploy.local.apiserver.registry.watching import Watch, WatchOptions
from deploy.local.apiserver.server import ApiServer, admin_tokens, build
from protocol.kubernetes.objects import Json
from protocol.runtime.kubernetes.http_api import HttpApi
from tests.nesting import DEEP
from tests.plain_http import DirectClient


def _place(path: str) -> tuple[str, str, str]:
    """Group, version and plural of ``/api/v1/pods``, ``/apis/apps/v1/deployments`` and so on."""
    parts = path.strip("/").split("/")
    return ("", parts[1], parts[-1]) if parts[0] == "api" else (parts[1], parts[2], parts[-1])


class _Lines(httpx.AsyncByteStream):
    def __init__(self, lines: AsyncIterator[bytes]) -> None:
        self._lines = lines

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for each in self._lines:
            yield each


class InProcess(httpx.AsyncBaseTransport):
    """A transport to one API server. ``busy`` counts requests that have not been answered; ``patched`` has the status
    and path of each answered patch, ``read`` the path of each read.

    Of the next request whose method and path end so, ``unanswered`` loses the answer, and ``lost`` the request itself;
    ``failing`` has it answered with the status ``fault``, and nothing done. ``refused``, a pattern, has every
    request answered so whose method and path match it.
    """

    def __init__(self, environment: Environment | None = None) -> None:
        self.server: ApiServer = build(None, admin_tokens("secret"), environment or system_environment())
        self._asgi = httpx.ASGITransport(self.server.app)
        self._closing = asyncio.Event()
        self.busy = 0
        self.patched: list[tuple[int, str]] = []
        self.read: list[str] = []
        self.is_away = False
        self.unanswered = ""
        self.lost = ""
        self.failing = ""
        self.refused = ""
        self._garbled = b""
        self.fault = 503

    def garble(self, name: str) -> None:
        """From now on watches deliver objects of this name with too much nesting for any decoder."""
        self._garbled = name.encode()

    def hide_errors(self) -> None:
        """From now on an error of the server is a 500, as over a network, and does not fail the test."""
        self._asgi = httpx.ASGITransport(self.server.app, raise_app_exceptions=False)

    def client(self) -> ApiClient:
        headers = {"Authorization": "Bearer secret"}
        return ApiClient(HttpApi(DirectClient(self, "http://api", headers), lambda: None))

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        if self.is_away:
            raise httpx.ConnectError("the API server is away")
        if request.url.params.get("watch") in {"1", "true"}:
            return httpx.Response(200, stream=_Lines(self._watch(request)))
        if self.lost and f"{request.method} {request.url.path}".endswith(self.lost):
            self.lost = ""
            raise httpx.ConnectError("the request was lost")
        if self.failing and f"{request.method} {request.url.path}".endswith(self.failing):
            self.failing = ""
            return httpx.Response(self.fault, json={"reason": "Injected", "message": "not now"})
        if self.refused and re.search(self.refused, f"{request.method} {request.url.path}"):
            return httpx.Response(self.fault, json={"reason": "Injected", "message": "not now"})
        self.busy += 1
        try:
            answer = await self._asgi.handle_async_request(request)
        finally:
            self.busy -= 1
        if request.method == "GET":
            self.read.append(request.url.path)
        if request.method == "PATCH":
            self.patched.append((answer.status_code, request.url.path))
        if self.unanswered and f"{request.method} {request.url.path}".endswith(self.unanswered):
            self.unanswered = ""
            raise httpx.ReadError("the answer was lost")
        return answer

    def objects(self, plural: str, group: str = "") -> list[Json]:
        """All objects of a kind as stored, without a request: a fixture checks them after every step."""
        key = f"{plural}.{group}" if group else plural
        return [stored.body for stored in self.server.api.store.objects(key)]

    def go_away(self) -> None:
        """From now on requests get no response, and watches break."""
        self.is_away = True
        closing, self._closing = self._closing, asyncio.Event()
        closing.set()
        self.server.api.store.wake_all()

    def come_back(self) -> None:
        self.is_away = False

    async def _watch(self, request: httpx.Request) -> AsyncIterator[bytes]:
        group, version, plural = _place(request.url.path)
        resource = self.server.api.catalog.find(group, version, plural)
        assert resource is not None, request.url
        options = WatchOptions(resource_version=request.url.params.get("resourceVersion", ""))
        watch = Watch(self.server.api.store, RequestTarget(resource), options, None)
        async for chunk in watch.lines(self._closing):
            for line in chunk.splitlines(keepends=True):
                garbled = self._garbled and b'"name":"%s"' % self._garbled in line
                yield line.replace(b'"spec":{', b'"spec":{"deep":%s,' % DEEP, 1) if garbled else line
