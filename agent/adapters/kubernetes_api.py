"""A minimal client of the Kubernetes API: get, list, watch, post and patch JSON, with a rotating token.

It raises the errors of ``agent.ports`` instead of exposing status codes.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Final, TypeVar

import httpx2 as httpx
import msgspec

from agent import texts
from agent.adapters.http_errors import no_answer
from agent.core.events import Fault
from agent.ports import ConflictError, ExpiredError, PortError, RefusedError, TokenSource
from protocol.kubernetes.objects import Json
from protocol.kubernetes.pages import (
    LONGEST_LINE,
    EncodedPage,
    LineSplitter,
    UnreadableAnswerError,
    WatchEvent,
    read_encoded_page,
    read_event,
    read_object,
)
from protocol.kubernetes.refusals import Refusal, RefusalKind, read_refusal
from protocol.kubernetes.resources import MERGE_PATCH
from protocol.kubernetes.watch_times import WatchTimes, watch_query
from protocol.units import Seconds

TIMES: Final = WatchTimes.spread(0.0)

PAGE: Final = 256
"""Maximum objects per page of a list; fewer if a page would exceed ``LONGEST_PAGE``."""

LONGEST_PAGE: Final = LONGEST_LINE
"""Bytes. Anyone who may create pods may put large ones on the agent's node."""

_ERRORS: Final[Mapping[RefusalKind, type[PortError]]] = {
    RefusalKind.UNAVAILABLE: PortError,
    RefusalKind.TOO_MANY_REQUESTS: PortError,  # temporary: must not delay a growth like a refusal
    RefusalKind.UNAUTHORIZED: PortError,  # temporary: the token may have just expired
    RefusalKind.CONFLICT: ConflictError,
    RefusalKind.GONE: ExpiredError,
}
_OURS: Final = frozenset({RefusalKind.UNAUTHORIZED, RefusalKind.FORBIDDEN})
"""Refusals of the agent's identity or rights: its own fault."""

_BAD_REQUEST: Final = 400


class LightKubernetesApi:
    """The API server at ``url``."""

    def __init__(self, client: httpx.AsyncClient, url: str, identity: TokenSource, deadline: Seconds) -> None:
        self._client = client
        self._url = url.rstrip("/")
        self._identity = identity
        self._deadline = deadline

    async def get(self, path: str) -> Json:
        """Get the object at ``path``. Raises ``PortError``."""
        return _read(read_object, await self._call("GET", path), texts.NO_OBJECT)

    async def pages(self, path: str, params: Mapping[str, str]) -> AsyncGenerator[EncodedPage]:
        """Yield the collection at ``path`` page by page. Raises ``PortError``."""
        size, next_page = PAGE, dict[str, str]()
        while True:
            body = await self._page(path, {**params, "limit": str(size), **next_page})
            if body is None:
                if size == 1:
                    reason = texts.TOO_LARGE.format(most=LONGEST_PAGE)
                    raise PortError(Fault.VM_API, texts.API_UNREADABLE.format(what=texts.BAD_LIST, error=reason))
                size = max(1, size // 4)
                continue
            page = _read(read_encoded_page, body, texts.BAD_LIST)
            yield page
            if not page.continue_token:
                return
            size, next_page = min(PAGE, 2 * size), {"continue": page.continue_token}

    async def patch(self, path: str, patch: Mapping[str, object], content_type: str = MERGE_PATCH) -> Json:
        """Patch the object at ``path`` and return it. Raises ``PortError``; ``ConflictError`` if it had changed."""
        body = await self._call("PATCH", path, body=msgspec.json.encode(patch), content_type=content_type)
        return _read(read_object, body, texts.NO_OBJECT)

    async def post(self, path: str, body: Mapping[str, object]) -> Json:
        """Create the object ``body`` and return it as stored. Raises ``PortError``."""
        answer = await self._call("POST", path, body=msgspec.json.encode(body), content_type="application/json")
        return _read(read_object, answer, texts.NO_OBJECT)

    async def watch(self, path: str, params: Mapping[str, str], version: str) -> AsyncGenerator[WatchEvent]:
        """Yield changes at ``path`` since ``version`` (empty: start with all objects) until the server ends the watch.

        Raises ``PortError``; ``ExpiredError`` if ``version`` is too old.
        """
        lines = LineSplitter()
        try:
            async with self._stream(path, {**params, **watch_query(version, TIMES)}) as answer:
                async for chunk in answer.aiter_bytes():
                    for line in _read(lines.feed, chunk, texts.BAD_EVENT):
                        yield _event(path, line)
        # The server would have ended the watch before this timeout, so the connection is dead.
        except httpx.ReadTimeout:
            return
        except (httpx.HTTPError, OSError) as error:
            raise no_answer(texts.API_SERVER.format(url=self._url), error, self._deadline) from None

    async def _page(self, path: str, params: Mapping[str, str]) -> bytes | None:
        """The body of one page; None if it exceeds ``LONGEST_PAGE``."""
        body = bytearray()
        try:
            async with asyncio.timeout(self._deadline), self._stream(path, params) as answer:
                async for piece in answer.aiter_bytes():
                    body += piece
                    if len(body) > LONGEST_PAGE:
                        return None
        except (httpx.HTTPError, OSError) as error:
            raise no_answer(texts.API_SERVER.format(url=self._url), error, self._deadline) from None
        return bytes(body)

    @asynccontextmanager
    async def _stream(self, path: str, params: Mapping[str, str]) -> AsyncGenerator[httpx.Response]:
        request = self._client.build_request(
            "GET",
            self._url + path,
            params=params,
            headers=self._headers(),
            # Without events, nothing arrives until the server ends the watch.
            timeout=httpx.Timeout(self._deadline, read=TIMES.silence),
        )
        # The deadline covers only the headers: events arrive as long as the watch lasts.
        async with asyncio.timeout(self._deadline):
            answer = await self._client.send(request, stream=True)
        try:
            if answer.status_code != httpx.codes.OK:
                # Use the timeout for watches.
                async with asyncio.timeout(self._deadline):
                    body = await answer.aread()
                raise _refusal("GET", path, read_refusal(answer.status_code, body))
            yield answer
        finally:
            await answer.aclose()

    async def _call(
        self,
        method: str,
        path: str,
        *,
        body: bytes | None = None,
        content_type: str | None = None,
    ) -> bytes:
        headers = self._headers() | ({} if content_type is None else {"Content-Type": content_type})
        try:
            async with asyncio.timeout(self._deadline):
                answer = await self._client.request(method, self._url + path, content=body, headers=headers)
        except (httpx.HTTPError, OSError) as error:
            raise no_answer(texts.API_SERVER.format(url=self._url), error, self._deadline) from None
        if not answer.is_success:
            raise _refusal(method, path, read_refusal(answer.status_code, answer.content))
        return answer.content

    def _headers(self) -> dict[str, str]:
        token = self._identity()
        return {"Accept": "application/json"} | ({} if token is None else {"Authorization": f"Bearer {token}"})


def _refusal(method: str, path: str, refusal: Refusal) -> PortError:
    # The agent built the request, so a 400 is also its own fault.
    ours = refusal.kind in _OURS or refusal.status == _BAD_REQUEST
    message = f": {refusal.message}" if refusal.message else ""
    reason = texts.API_REFUSES.format(status=refusal.status, method=method, path=path, message=message)
    return _ERRORS.get(refusal.kind, RefusedError)(Fault.AGENT if ours else Fault.VM_API, reason)


def _event(path: str, line: bytes) -> WatchEvent:
    event = _read(read_event, line, texts.BAD_EVENT)
    # After status 200, a watch reports errors as events.
    if event.refusal is not None:
        raise _refusal("WATCH", path, event.refusal)
    return event


T = TypeVar("T")


def _read(read: Callable[[bytes], T], body: bytes, wrong: str) -> T:
    try:
        return read(body)
    except UnreadableAnswerError as error:
        raise PortError(Fault.VM_API, texts.API_UNREADABLE.format(what=wrong, error=error)) from None
