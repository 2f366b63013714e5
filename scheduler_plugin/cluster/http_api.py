"""The Kubernetes API over httpx, with raw JSON bodies.

Rules that hold here:

- A status of 5xx is *unknown*: a proxy may answer for a server that still works. Any other failure status is a
  refusal: the server says so before it changes anything.
- The token is asked for on each call: projected tokens change on disk.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Final

import httpx
import msgspec

from protocol.units import Seconds
from scheduler_plugin.cluster.api import ApiCall, ApiError, ApiRefusedError, ApiUnknownError, JsonObject

LONGEST_MESSAGE: Final = 300
"""At most so many characters of a server's complaint are kept."""

_OBJECT: Final = msgspec.json.Decoder(dict[str, object])


class HttpApi:
    """``KubernetesApi`` on one ``httpx.AsyncClient`` (which knows the server's URL and its TLS)."""

    def __init__(self, client: httpx.AsyncClient, token: Callable[[], str | None]) -> None:
        self._client = client
        self._token = token

    async def call(self, call: ApiCall) -> JsonObject:
        """See ``KubernetesApi.call``."""
        try:
            async with asyncio.timeout(call.timeout):
                response = await self._client.send(self._request(call, call.timeout))
        except (httpx.HTTPError, TimeoutError) as error:
            raise _unknown(call, error) from error
        if not response.is_success:
            raise _complaint(response.status_code, response.content)
        try:
            return _OBJECT.decode(response.content)
        except msgspec.DecodeError as error:
            raise _unknown(call, error) from error

    def stream(self, call: ApiCall) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
        """See ``KubernetesApi.stream``."""
        return self._stream(call)

    @asynccontextmanager
    async def _stream(self, call: ApiCall) -> AsyncIterator[AsyncIterator[bytes]]:
        try:
            response = await self._client.send(self._request(call, call.timeout), stream=True)
        except httpx.HTTPError as error:
            raise _unknown(call, error) from error
        try:
            if not response.is_success:
                raise _complaint(response.status_code, await response.aread())
            yield _lines(call, response.aiter_bytes())
        except httpx.HTTPError as error:
            raise _unknown(call, error) from error
        finally:
            await response.aclose()

    def _request(self, call: ApiCall, silence: Seconds) -> httpx.Request:
        headers = {"Content-Type": call.content_type, "Accept": "application/json"}
        token = self._token()
        if token is not None:
            headers["Authorization"] = f"Bearer {token}"
        content = None if call.body is None else msgspec.json.encode(call.body)
        return self._client.build_request(
            call.method, call.path, params=dict(call.query), content=content, headers=headers, timeout=silence
        )


async def _lines(call: ApiCall, chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Whole lines, however the bytes were cut; a last line without its end is dropped: it is incomplete."""
    rest: list[bytes] = []
    try:
        async for chunk in chunks:
            first, *others = chunk.split(b"\n")
            rest.append(first)
            for following in others:
                line, rest = b"".join(rest), [following]
                if line:
                    yield line
    except httpx.HTTPError as error:
        raise _unknown(call, error) from error


def _unknown(call: ApiCall, error: Exception) -> ApiUnknownError:
    return ApiUnknownError(f"{call.method} {call.path}: {type(error).__name__}: {error}"[:LONGEST_MESSAGE])


def _complaint(status: int, body: bytes) -> ApiError:
    try:
        message = str(_OBJECT.decode(body).get("message", ""))
    except msgspec.DecodeError:
        message = body[:LONGEST_MESSAGE].decode(errors="replace")
    if status >= 500:
        return ApiUnknownError(f"{status}: {message}"[:LONGEST_MESSAGE])
    return ApiRefusedError(status, message[:LONGEST_MESSAGE])
