"""The port to the Kubernetes API: one call, one page, one stream, and errors that tell refused from unknown.

A write ends in one of three ways: done (a value), refused (``ApiRefusedError``: nothing was changed), or unknown
(``ApiUnknownError``: it may have happened, or may yet happen). Every writer must treat the three differently.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from dataclasses import dataclass
from typing import Final, Protocol

import msgspec

from protocol.kubernetes.objects import JsonObject
from protocol.kubernetes.pages import Page
from protocol.kubernetes.refusals import SHOWN, Refusal, RefusalKind, read_refusal
from protocol.units import Instant, Seconds

LONGEST_PAGE: Final = 8 * 1024 * 1024
"""Bytes of one page of a list. 500 ordinary pods have half of that."""


class ApiError(Exception):
    """A call to the Kubernetes API failed; see the two kinds. ``retry_after`` is the wait that the server asks for."""

    # Added to every back-off; None unless the server sent Retry-After.
    retry_after: Seconds | None = None


class ApiRefusedError(ApiError):
    """The API answered that it did not do it; nothing was changed. ``message`` replaces the refusal's own text."""

    def __init__(self, refusal: Refusal, message: str = "") -> None:
        super().__init__(message or str(refusal))
        self.refusal = refusal
        self.retry_after = refusal.retry_after

    @property
    def kind(self) -> RefusalKind:
        """The kind of refusal."""
        return self.refusal.kind


class ApiUnknownError(ApiError):
    """No usable answer: a time-out, a broken connection or a fault of the server. A write may have happened."""

    def __init__(self, message: str, retry_after: Seconds | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


@dataclass(frozen=True, slots=True)
class Tolerating:
    """Suppresses refusals of this kind (``with``): what the call was for is the case already.

    >>> with Tolerating(RefusalKind.NOT_FOUND):
    ...     raise complaint(404, b"no such pod", "")
    >>> with Tolerating(RefusalKind.NOT_FOUND):
    ...     raise complaint(409, b"taken", "")
    Traceback (most recent call last):
    protocol.kubernetes.api.ApiRefusedError: 409: taken
    """

    kind: RefusalKind

    def __enter__(self) -> None: ...

    # A ``bool``, not a generator: type checkers then know that the statements behind a ``with`` are reached.
    def __exit__(self, _: object, error: BaseException | None, __: object) -> bool:
        return isinstance(error, ApiRefusedError) and error.kind is self.kind


class PageTooLargeError(ApiUnknownError):
    """A page of a list has more bytes than are read at once: ask for fewer objects."""


def complaint(status: int, body: bytes, retry_after: str) -> ApiError:
    """The error for a response that is not a success.

    >>> complaint(409, b"taken", ""), complaint(503, b"later", "2").retry_after
    (ApiRefusedError('409: taken'), 2.0)
    """
    refusal = read_refusal(status, body, retry_after)
    # A 5xx may come from a proxy while the API server still does the work, so it refuses nothing.
    return ApiUnknownError(str(refusal), refusal.retry_after) if refusal.is_unknown else ApiRefusedError(refusal)


class ApiCall(msgspec.Struct, frozen=True):
    """One request. ``path`` begins with a slash; ``body`` is encoded as JSON; ``timeout`` covers the whole call.

    From ``not_after`` on, on the machine's monotonic clock, it must not be sent any more: the process may have been
    suspended between the decision and the call.
    """

    method: str
    path: str
    # No default: nothing in this project waits for the API without a time-out.
    timeout: Seconds
    query: Mapping[str, str] = {}
    body: JsonObject | None = None
    content_type: str = "application/json"
    not_after: Instant | None = None

    def within(self, timeout: Seconds, not_after: Instant | None = None) -> ApiCall:
        """The call with this time-out, which the API server is asked to observe, too.

        >>> ApiCall("DELETE", "/api/v1/nodes/n1", Seconds(3.0)).within(Seconds(1.5)).query
        {'timeout': '1500ms'}
        """
        least_ms = 1  # the server takes 0 for no time-out at all
        # The server gives up a request that takes this long, so that a write does not land after its sender has gone
        # on.
        query = {**self.query, "timeout": f"{max(least_ms, int(timeout * 1000))}ms"}
        return ApiCall(self.method, self.path, timeout, query, self.body, self.content_type, not_after)


def for_people(refusal: Refusal) -> ApiError:
    """The error of a refusal, as people read it: the reason first, and the status after it.

    >>> for_people(read_refusal(404, b"no such pod")), for_people(read_refusal(503, b"later"))
    (ApiRefusedError('no such pod (404)'), ApiUnknownError('503: later'))
    """
    if refusal.is_unknown:
        return ApiUnknownError(str(refusal), refusal.retry_after)
    return ApiRefusedError(refusal, f"{refusal.message or refusal.reason or refusal.kind.value} ({refusal.status})")


def unknown(call: ApiCall, error: Exception) -> ApiUnknownError:
    """The error that the outcome of the call is unknown, for this reason.

    >>> unknown(ApiCall("GET", "/version", Seconds(5.0)), TimeoutError("late"))
    ApiUnknownError('GET /version: TimeoutError: late')
    >>> unknown(ApiCall("GET", "/version", Seconds(5.0)), TimeoutError())
    ApiUnknownError('GET /version: TimeoutError')
    """
    # Client errors may quote a whole response; a log line must stay readable.
    reason = f"{type(error).__name__}: {error}".removesuffix(": ")
    return ApiUnknownError(f"{call.method} {call.path}: {reason}"[:SHOWN])


Writing = Callable[[ApiCall], AbstractContextManager[ApiCall]]
"""Entered around each write: the call as it may be made now, or an ``ApiUnknownError`` if nothing may be written."""


class KubernetesApi(Protocol):
    """The API of one cluster; faults are injected here. Each method raises one of the two kinds of ``ApiError``."""

    async def call(self, call: ApiCall) -> JsonObject:
        """The decoded answer."""

    async def page(self, call: ApiCall) -> Page:
        """One page of a list, decoded object by object; also raises ``PageTooLargeError``."""

    def stream(self, call: ApiCall) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
        """The lines of a watch; ``timeout`` is how long it may stay silent. Raises also while it is read."""


class RawApi(KubernetesApi, Protocol):
    """The API of one cluster with its other paths, such as ``/readyz`` and the proxies of pods. Close it when done."""

    async def raw(self, call: ApiCall) -> tuple[bytes, Mapping[str, str]]:
        """The body of the answer, of any length, and its headers as far as the client keeps them."""

    async def aclose(self) -> None:
        """Close its connections."""
