"""The port to the Kubernetes API: calls, pages, streams, and errors that distinguish refused from unknown.

A write ends in one of three ways: done (a value), refused (``ApiRefusedError``: nothing changed), or unknown
(``ApiUnknownError``: it may have been applied, or may still be). Every caller must treat the three differently.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from dataclasses import dataclass
from typing import Final, Protocol

import msgspec

from protocol.kubernetes.objects import JsonObject
from protocol.kubernetes.pages import LONGEST_LINE, Page
from protocol.kubernetes.refusals import SHOWN, Refusal, RefusalKind, read_refusal
from protocol.units import Instant, Seconds

LONGEST_PAGE: Final = LONGEST_LINE
"""Maximum bytes of one page of a list: a page with one object always fits."""


class ApiError(Exception):
    """A call to the Kubernetes API failed; see the two subclasses. ``retry_after`` is the server's Retry-After,
    if any.
    """

    # Added to every backoff.
    retry_after: Seconds | None = None


class ApiRefusedError(ApiError):
    """The API refused the request, and nothing changed. ``message`` replaces the refusal's own text."""

    def __init__(self, refusal: Refusal, message: str = "") -> None:
        super().__init__(message or str(refusal))
        self.refusal = refusal
        self.retry_after = refusal.retry_after

    @property
    def kind(self) -> RefusalKind:
        """The kind of refusal."""
        return self.refusal.kind


class ApiUnknownError(ApiError):
    """No usable answer: a timeout, a broken connection or a server error. A write may have been applied."""

    def __init__(self, message: str, retry_after: Seconds | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


@dataclass(frozen=True, slots=True)
class Tolerating:
    """Suppresses refusals of this kind (``with``), because the desired state is already reached.

    >>> with Tolerating(RefusalKind.NOT_FOUND):
    ...     raise response_error(404, b"no such pod", "")
    >>> with Tolerating(RefusalKind.NOT_FOUND):
    ...     raise response_error(409, b"taken", "")
    Traceback (most recent call last):
    protocol.kubernetes.api.ApiRefusedError: 409: taken
    """

    kind: RefusalKind

    def __enter__(self) -> None: ...

    # Not a generator: because of the ``bool``, type checkers know that statements after the ``with`` are reachable.
    def __exit__(self, _: object, error: BaseException | None, __: object) -> bool:
        return isinstance(error, ApiRefusedError) and error.kind is self.kind


class PageTooLargeError(ApiUnknownError):
    """A page of a list is too large: request fewer objects."""


def response_error(status: int, body: bytes, retry_after: str) -> ApiError:
    """The error for a response that is not a success.

    >>> response_error(409, b"taken", ""), response_error(503, b"later", "2").retry_after
    (ApiRefusedError('409: taken'), 2.0)
    """
    refusal = read_refusal(status, body, retry_after)
    # A 5xx may come from a proxy while the API server still processes the request, so it is not a refusal.
    return ApiUnknownError(str(refusal), refusal.retry_after) if refusal.is_unknown else ApiRefusedError(refusal)


class ApiCall(msgspec.Struct, frozen=True):
    """One request. ``path`` begins with a slash; ``body`` is encoded as JSON; ``timeout`` covers the whole call.

    It must not be sent after ``not_after`` (on the monotonic clock), because the process may have been suspended
    between the decision and the call. ``longest`` limits the bytes of the answer.
    """

    method: str
    path: str
    # No default, so that no call waits for the API server without a timeout.
    timeout: Seconds
    query: Mapping[str, str] = {}
    body: JsonObject | None = None
    content_type: str = "application/json"
    not_after: Instant | None = None
    longest: int = LONGEST_PAGE

    def within(self, timeout: Seconds, not_after: Instant | None = None) -> ApiCall:
        """The call with this timeout, which is also sent to the API server.

        >>> ApiCall("DELETE", "/api/v1/nodes/n1", Seconds(3.0)).within(Seconds(1.5)).query
        {'timeout': '1500ms'}
        """
        least_ms = 1  # for the server, 0 means no timeout
        # The server aborts the request after this time, so that a write is not applied after its sender gave up.
        query = {**self.query, "timeout": f"{max(least_ms, int(timeout * 1000))}ms"}
        return ApiCall(self.method, self.path, timeout, query, self.body, self.content_type, not_after)


def readable_error(refusal: Refusal) -> ApiError:
    """The error for a refusal, for terminals: first the reason, then the status.

    >>> readable_error(read_refusal(404, b"no such pod")), readable_error(read_refusal(503, b"later"))
    (ApiRefusedError('no such pod (404)'), ApiUnknownError('503: later'))
    """
    if refusal.is_unknown:
        return ApiUnknownError(str(refusal), refusal.retry_after)
    return ApiRefusedError(refusal, f"{refusal.message or refusal.reason or refusal.kind.value} ({refusal.status})")


def unknown(call: ApiCall, error: Exception) -> ApiUnknownError:
    """The error for a call whose outcome is unknown because of ``error``.

    >>> unknown(ApiCall("GET", "/version", Seconds(5.0)), TimeoutError("late"))
    ApiUnknownError('GET /version: TimeoutError: late')
    >>> unknown(ApiCall("GET", "/version", Seconds(5.0)), TimeoutError())
    ApiUnknownError('GET /version: TimeoutError')
    """
    # Errors of HTTP clients may quote a whole response; keep log lines readable.
    reason = f"{type(error).__name__}: {error}".removesuffix(": ")
    return ApiUnknownError(f"{call.method} {call.path}: {reason}"[:SHOWN])


Writing = Callable[[ApiCall], AbstractContextManager[ApiCall]]
"""Entered around each write: yields the call as it may be sent now, or raises ``ApiUnknownError`` if writes are
forbidden.
"""


class KubernetesApi(Protocol):
    """The API of one cluster; tests inject faults here. Each method raises one of the two kinds of ``ApiError``."""

    async def call(self, call: ApiCall) -> JsonObject:
        """The decoded answer."""

    async def page(self, call: ApiCall) -> Page:
        """One page of a list, decoded object by object; also raises ``PageTooLargeError``."""

    def stream(self, call: ApiCall) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
        """The lines of a watch; ``timeout`` limits its silence. Iterating also raises."""


class RawApi(KubernetesApi, Protocol):
    """Also gives access to other paths of the API, such as ``/readyz`` and pod proxies. Close it when done."""

    async def raw(self, call: ApiCall) -> tuple[bytes, Mapping[str, str]]:
        """The body of the answer, of any length, and the headers that the client keeps."""

    async def aclose(self) -> None:
        """Close all connections."""
