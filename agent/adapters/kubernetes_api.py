"""The Kubernetes API as far as an agent needs it: read, watch and patch JSON, with a token that may change.

Rules that hold here:

- Bodies are plain JSON values; who calls knows what they mean.
- Every call has a deadline; a watch has one for its beginning and is ended by the server, or by silence for too long.
- Errors are those of ``agent.ports``: the caller never sees a status code.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import Final

import httpx
import msgspec

from agent.adapters.http_errors import no_answer, reason_in
from agent.core.events import Fault
from agent.ports import ConflictError, GoneError, PortError, RefusedError, TokenSource
from protocol.units import Seconds

MERGE_PATCH: Final = "application/merge-patch+json"

WATCH_SPAN: Final = Seconds(290.0)
"""How long a watch is asked to last; a server that says nothing for longer than this and ``SILENCE`` is gone."""

SILENCE: Final = Seconds(30.0)

LONGEST_LINE: Final = 4 * 1024 * 1024
"""An object of the API server has at most 1.5 MiB; JSON may escape it to more."""

_ANY: Final = msgspec.json.Decoder(dict[str, object])

_ERRORS: Final[Mapping[int, type[PortError]]] = {
    400: RefusedError,
    403: RefusedError,
    404: GoneError,
    409: ConflictError,
    410: GoneError,
    422: RefusedError,
}


class WatchEvent(msgspec.Struct, frozen=True):
    """One line of a watch."""

    type: str
    found: dict[str, object] = msgspec.field(name="object")


_EVENT: Final = msgspec.json.Decoder(WatchEvent)


class KubernetesApi:
    """An API server at ``url``."""

    def __init__(self, client: httpx.AsyncClient, url: str, identity: TokenSource, deadline: Seconds) -> None:
        self._client = client
        self._url = url.rstrip("/")
        self._identity = identity
        self._deadline = deadline

    async def get(self, path: str, params: Mapping[str, str] | None = None) -> dict[str, object]:
        """The object or list at ``path``. Raises ``PortError``."""
        return await self._call("GET", path, params=params)

    async def merge_patch(self, path: str, patch: Mapping[str, object]) -> dict[str, object]:
        """The object at ``path`` after ``patch``. Raises ``PortError``: ``ConflictError`` where it had changed."""
        return await self._call("PATCH", path, body=msgspec.json.encode(patch), content_type=MERGE_PATCH)

    async def watch(self, path: str, params: Mapping[str, str]) -> AsyncGenerator[WatchEvent]:
        """The changes at ``path`` until the server ends the watch. Raises ``PortError``; ``GoneError`` when too old."""
        asked = {"watch": "1", "allowWatchBookmarks": "true", "timeoutSeconds": str(int(WATCH_SPAN)), **params}
        async with self._stream(path, asked) as answer:
            rest = b""
            async for chunk in answer.aiter_bytes():
                *lines, rest = (rest + chunk).split(b"\n")
                if len(rest) > LONGEST_LINE:
                    raise PortError(Fault.VM_API, "the API server sends a line without an end")
                for line in filter(None, lines):
                    yield _event(path, line)

    @asynccontextmanager
    async def _stream(self, path: str, params: Mapping[str, str]) -> AsyncGenerator[httpx.Response]:
        silence = Seconds(WATCH_SPAN + SILENCE)
        timeout = httpx.Timeout(self._deadline, read=silence)
        try:
            headers = self._headers()
            async with self._client.stream(
                "GET", self._url + path, params=params, headers=headers, timeout=timeout
            ) as answer:
                if answer.status_code != httpx.codes.OK:
                    raise _refusal("GET", path, answer.status_code, await answer.aread())
                yield answer
        except (httpx.HTTPError, OSError) as error:
            raise no_answer(f"the API server at {self._url}", error, silence) from None

    async def _call(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        body: bytes | None = None,
        content_type: str | None = None,
    ) -> dict[str, object]:
        headers = self._headers() | ({} if content_type is None else {"Content-Type": content_type})
        try:
            async with asyncio.timeout(self._deadline):
                answer = await self._client.request(
                    method, self._url + path, params=params, content=body, headers=headers
                )
        except (httpx.HTTPError, OSError) as error:
            raise no_answer(f"the API server at {self._url}", error, self._deadline) from None
        if answer.status_code != httpx.codes.OK:
            raise _refusal(method, path, answer.status_code, answer.content)
        return _decoded(answer.content)

    def _headers(self) -> dict[str, str]:
        token = self._identity.token()
        return {"Accept": "application/json"} | ({} if token is None else {"Authorization": f"Bearer {token}"})


def _refusal(method: str, path: str, status: int, body: bytes) -> PortError:
    fault = Fault.AGENT if status in (400, 401, 403) else Fault.VM_API
    reason = f"the API server answers {status} to {method} {path}: {reason_in(body)}"
    return _ERRORS.get(status, PortError)(fault, reason)


def _decoded(body: bytes) -> dict[str, object]:
    try:
        return _ANY.decode(body)
    except msgspec.DecodeError as error:
        raise PortError(Fault.VM_API, f"the API server's answer is no JSON object: {error}") from None


def _event(path: str, line: bytes) -> WatchEvent:
    try:
        event = _EVENT.decode(line)
    except msgspec.DecodeError as error:
        raise PortError(Fault.VM_API, f"the API server's watch makes no sense: {error}") from None
    if event.type == "ERROR":
        status = event.found.get("code")
        raise _refusal("WATCH", path, status if isinstance(status, int) else 500, msgspec.json.encode(event.found))
    return event
