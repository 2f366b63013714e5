"""What the scheduler needs of the Kubernetes API: one call, one stream, and errors that say what is known.

Rules that hold here:

- A write ends in one of three ways: done (a value), refused (``ApiRefusedError``: nothing was changed), or unknown
  (``ApiUnknownError``: it may have happened, or may yet happen). Whoever writes must treat the three differently.
- Every call has a time-out; nothing in this project waits for the API without one.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Protocol

from protocol.units import Seconds

JsonObject = Mapping[str, object]
"""A JSON object as it was decoded; only ``translate`` looks inside those of the cluster."""


class ApiError(Exception):
    """The Kubernetes API did not do what was asked; see the two kinds."""


class ApiRefusedError(ApiError):
    """The API answered that it did not do it; nothing was changed. ``status`` is the HTTP status."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"{status}: {message}")
        self.status = status


class ApiUnknownError(ApiError):
    """No usable answer: a time-out, a broken connection or a fault of the server. A write may have happened."""


@dataclass(frozen=True, slots=True)
class ApiCall:
    """One request. ``path`` begins with a slash; ``body`` is encoded as JSON; ``timeout`` covers the whole call."""

    method: str
    path: str
    timeout: Seconds
    query: Mapping[str, str] = field(default_factory=dict)
    body: JsonObject | None = None
    content_type: str = "application/json"


class KubernetesApi(Protocol):
    """The API of one cluster; faults are injected here."""

    async def call(self, call: ApiCall) -> JsonObject:
        """The decoded answer. Raises ``ApiRefusedError`` or ``ApiUnknownError``."""

    def stream(self, call: ApiCall) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
        """The lines of a watch; ``timeout`` is how long it may stay silent. Raises as ``call`` does, also later."""
