"""The Kubernetes API over our own connections: a call costs a tenth of one over httpx2 (decision 35)."""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from math import inf
from typing import Final
from urllib.parse import quote, urlencode

import msgspec

from protocol.kubernetes.api import ApiCall, response_error, unknown
from protocol.kubernetes.objects import JsonObject
from protocol.kubernetes.pages import Page, UnreadableAnswerError, read_object
from protocol.runtime.clock import SystemClock
from protocol.runtime.credentials import CredentialsError
from protocol.runtime.http_connection import BrokenConnectionError, HttpConnection, LongAnswerError
from protocol.runtime.kubernetes.large_pages import decoded, joined, lines, too_large
from protocol.runtime.kubernetes.pool import ConnectionPool

_PLAIN: Final = re.compile(r"[A-Za-z0-9/._-]+")
"""A path that needs no quoting."""

_FAILURES: Final = (OSError, BrokenConnectionError, CredentialsError, TimeoutError, UnreadableAnswerError)


class DirectApi:
    """``RawApi`` on one ``ConnectionPool``. The program's ``name`` appears in the API server's logs and
    ``managedFields``.

    If ``is_patient``, the timeout of a call starts once it has a connection, no matter how long it waited for one.
    """

    def __init__(
        self, pool: ConnectionPool, token: Callable[[], str | None], name: str, *, is_patient: bool = False
    ) -> None:
        self._pool = pool
        self._token = token
        self._name = name
        self._is_patient = is_patient
        self._now = SystemClock().now

    async def aclose(self) -> None:
        """Close the pool."""
        self._pool.close()

    async def call(self, call: ApiCall) -> JsonObject:
        """See ``KubernetesApi.call``."""
        try:
            return read_object(await self._send(call))
        except _FAILURES as error:
            raise unknown(call, error) from error

    async def raw(self, call: ApiCall) -> tuple[bytes, Mapping[str, str]]:
        """See ``RawApi.raw``. It returns no headers, because parsing them would cost more than the rest of a call."""
        try:
            return await self._send(call, sys.maxsize), {}
        except _FAILURES as error:
            raise unknown(call, error) from error

    async def page(self, call: ApiCall) -> Page:
        """See ``KubernetesApi.page``."""
        try:
            async with asyncio.timeout(call.timeout):
                return await decoded(await self._send(call))
        except _FAILURES as error:
            raise unknown(call, error) from error

    async def _send(self, call: ApiCall, longest: int = 0) -> bytes:
        deadline = asyncio.get_running_loop().time() + call.timeout
        # The wait for a connection also counts, unless the client is patient.
        connection = await self._pool.acquire(inf if self._is_patient else deadline)
        if self._is_patient:
            deadline = asyncio.get_running_loop().time() + call.timeout
        try:
            request = self._request(call)  # before the check, because it may read a file
            if call.not_after is not None and self._now() >= call.not_after:
                raise TimeoutError("too late to send the request")
            answer, body = await connection.exchange(request, deadline, longest or call.longest)
        except LongAnswerError:
            raise too_large(call) from None
        finally:
            # After an error the connection is not reusable, and the pool closes it.
            self._pool.release(connection)
        if not answer.is_success:
            raise response_error(answer.status, body, answer.retry_after)
        return body

    @asynccontextmanager
    async def stream(self, call: ApiCall) -> AsyncIterator[AsyncIterator[bytes]]:
        """See ``KubernetesApi.stream``."""
        try:
            async with self._pool.connection() as connection:
                await self._opened(call, connection)
                yield lines(call, _pieces(call, connection), _FAILURES)
        except _FAILURES as error:
            raise unknown(call, error) from error

    async def _opened(self, call: ApiCall, connection: HttpConnection) -> None:
        deadline = asyncio.get_running_loop().time() + call.timeout
        # Only the head of the response has a deadline: a watch lasts as long as lines arrive.
        async with asyncio.timeout_at(deadline):
            answer = await connection.ask(self._request(call), deadline)
            if not answer.is_success:
                raise response_error(answer.status, await joined(call, _pieces(call, connection)), answer.retry_after)

    def _request(self, call: ApiCall) -> bytes:
        body = b"" if call.body is None else msgspec.json.encode(call.body)
        query = f"?{urlencode(call.query)}" if call.query else ""
        # Nearly all paths are plain, and quoting costs more than this match.
        path = call.path if _PLAIN.fullmatch(call.path) else quote(call.path, safe="/%")
        token = self._token()
        authorization = "" if token is None else f"Authorization: Bearer {token}\r\n"
        head = (
            f"{call.method} {self._pool.base}{path}{query} HTTP/1.1\r\n"
            f"Host: {self._pool.host}\r\nUser-Agent: {self._name}\r\nAccept: application/json\r\n"
            f"{authorization}Content-Type: {call.content_type}\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        return head.encode("latin-1") + body


async def _pieces(call: ApiCall, connection: HttpConnection) -> AsyncIterator[bytes]:
    while (piece := await connection.piece(call.timeout)) is not None:
        yield piece
