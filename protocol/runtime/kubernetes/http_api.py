"""The Kubernetes API over httpx2, with raw JSON bodies."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Final

import httpx2 as httpx
import msgspec

from protocol.kubernetes.api import ApiCall, ApiError, response_error, unknown
from protocol.kubernetes.objects import JsonObject
from protocol.kubernetes.pages import Page, UnreadableAnswerError, read_object
from protocol.runtime.credentials import Credentials, CredentialsError
from protocol.runtime.keep_alive import probed_transport
from protocol.runtime.kubernetes.large_pages import decoded, joined, lines

CONNECT: Final = 5.0
"""Timeout of connecting in seconds: a list or a watch may take long, but not accepting a connection."""

_FAILURES: Final = (httpx.HTTPError, CredentialsError, TimeoutError, UnreadableAnswerError)


def http_client(credentials: Credentials, limits: httpx.Limits, name: str) -> httpx.AsyncClient:
    """A client for the Kubernetes API, in whose logs and ``managedFields`` the program's ``name`` appears."""
    # As bytes, because user names need not be ASCII.
    headers = [(key.encode(), value.encode()) for key, value in (("User-Agent", name), *credentials.headers)]
    transport = probed_transport(credentials.tls, limits, credentials.proxy)
    # With trust_env, API traffic would use any HTTP_PROXY of the pod; the kubeconfig's proxy is in the transport.
    return httpx.AsyncClient(base_url=credentials.server, transport=transport, headers=headers, trust_env=False)


class HttpApi:
    """``RawApi`` on one ``httpx.AsyncClient``, which contains the server's URL and TLS context."""

    def __init__(self, client: httpx.AsyncClient, token: Callable[[], str | None]) -> None:
        self._client = client
        self._token = token

    async def aclose(self) -> None:
        """Close the client."""
        await self._client.aclose()

    async def call(self, call: ApiCall) -> JsonObject:
        """See ``KubernetesApi.call``."""
        body, _ = await self.raw(call)
        try:
            return read_object(body)
        except UnreadableAnswerError as error:
            raise unknown(call, error) from error

    async def raw(self, call: ApiCall) -> tuple[bytes, Mapping[str, str]]:
        """See ``RawApi.raw``."""
        try:
            async with asyncio.timeout(call.timeout):
                response = await self._client.send(self._request(call))
        except _FAILURES as error:
            raise unknown(call, error) from error
        if not response.is_success:
            raise _complaint(response, response.content)
        return response.content, response.headers

    async def page(self, call: ApiCall) -> Page:
        """See ``KubernetesApi.page``."""
        try:
            async with asyncio.timeout(call.timeout), self._opened(call) as response:
                return await decoded(await joined(call, response.aiter_bytes()))
        except _FAILURES as error:
            raise unknown(call, error) from error

    @asynccontextmanager
    async def stream(self, call: ApiCall) -> AsyncIterator[AsyncIterator[bytes]]:
        """See ``KubernetesApi.stream``."""
        try:
            async with self._opened(call) as response:
                yield lines(call, response.aiter_bytes(), _FAILURES)
        except _FAILURES as error:
            raise unknown(call, error) from error

    @asynccontextmanager
    async def _opened(self, call: ApiCall) -> AsyncIterator[httpx.Response]:
        # For a watch the timeout bounds the silence between two reads, not the whole response.
        response = await self._client.send(self._request(call), stream=True)
        try:
            if not response.is_success:
                # The body of a streamed response must be read explicitly, and contains the reason.
                raise _complaint(response, await response.aread())
            yield response
        finally:
            # Otherwise the connection of an abandoned watch would not return to the pool.
            await response.aclose()

    def _request(self, call: ApiCall) -> httpx.Request:
        headers = {"Content-Type": call.content_type, "Accept": "application/json"}
        # Get it for each call, because the kubelet rotates projected tokens.
        token = self._token()
        if token is not None:
            headers["Authorization"] = f"Bearer {token}"
        content = None if call.body is None else msgspec.json.encode(call.body)
        timeout = httpx.Timeout(call.timeout, connect=min(CONNECT, call.timeout))
        return self._client.build_request(
            call.method, call.path, params=dict(call.query) or None, content=content, headers=headers, timeout=timeout
        )


def _complaint(response: httpx.Response, body: bytes) -> ApiError:
    return response_error(response.status_code, body, response.headers.get("Retry-After", ""))
