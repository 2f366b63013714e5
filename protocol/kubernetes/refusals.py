"""Meaning of an API server's refusals and failures. The only place that knows its status codes.

5xx says nothing about the outcome: a proxy may answer for a server that still works. Everything else is a refusal, made
before anything was changed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import msgspec

from protocol.kubernetes.objects import JsonObject, child, text, whole
from protocol.units import Seconds

SHOWN: Final = 300
"""Characters to which a server's message is cut."""

LONGEST_HEEDED: Final = Seconds(10.0)
"""A watch waits no longer than this at a server's request, since its state goes stale meanwhile."""

LONGEST_WAIT: Final = 3600
"""A ``Retry-After`` of more seconds than this is ignored."""

# The words with which apimachinery's ``NewInvalid`` begins.
_INVALID: Final = re.compile(r'[\w.]+ "[^"]*" is invalid: ')


class RefusalKind(StrEnum):
    """Kind of a server's refusal."""

    NOT_FOUND = "not found"
    ALREADY_EXISTS = "already exists"
    CONFLICT = "conflict"
    GONE = "gone"
    UNAUTHORIZED = "unauthorized"
    FORBIDDEN = "forbidden"
    INVALID = "invalid"
    TOO_MANY_REQUESTS = "too many requests"
    UNAVAILABLE = "unavailable"
    OTHER = "other"


_REASONS: Final = {
    "NotFound": RefusalKind.NOT_FOUND,
    "AlreadyExists": RefusalKind.ALREADY_EXISTS,
    "Conflict": RefusalKind.CONFLICT,
    "Gone": RefusalKind.GONE,
    "Expired": RefusalKind.GONE,
    "Unauthorized": RefusalKind.UNAUTHORIZED,
    "Forbidden": RefusalKind.FORBIDDEN,
    "Invalid": RefusalKind.INVALID,
    "BadRequest": RefusalKind.INVALID,
    "TooManyRequests": RefusalKind.TOO_MANY_REQUESTS,
    "ServiceUnavailable": RefusalKind.UNAVAILABLE,
    "InternalError": RefusalKind.UNAVAILABLE,
    "ServerTimeout": RefusalKind.UNAVAILABLE,
    "Timeout": RefusalKind.UNAVAILABLE,
}
_STATUSES: Final = {
    400: RefusalKind.INVALID,
    401: RefusalKind.UNAUTHORIZED,
    403: RefusalKind.FORBIDDEN,
    404: RefusalKind.NOT_FOUND,
    409: RefusalKind.CONFLICT,
    410: RefusalKind.GONE,
    422: RefusalKind.INVALID,
    429: RefusalKind.TOO_MANY_REQUESTS,
}


@dataclass(frozen=True, slots=True)
class Refusal:
    """A server's refusal. ``reason`` is its one word; ``retry_after`` the wait it asks for, in seconds."""

    kind: RefusalKind
    status: int
    message: str = ""
    reason: str = ""
    retry_after: Seconds | None = None

    @property
    def is_by_validation(self) -> bool:
        """True if the server's own rules for such objects forbid it, and no policy, webhook or quota of this cluster.

        Policies and webhooks may answer with the same status and reason, but the message begins differently.

        >>> Refusal(RefusalKind.INVALID, 422, 'Pod "db" is invalid: spec: Forbidden: no').is_by_validation
        True
        >>> Refusal(RefusalKind.INVALID, 422, 'pods "db" is forbidden: ValidatingAdmissionPolicy "p"').is_by_validation
        False
        """
        return self.kind is RefusalKind.INVALID and bool(_INVALID.match(self.message))

    @property
    def is_unknown(self) -> bool:
        """True if the request may have been carried out.

        >>> classify(503).is_unknown, classify(409).is_unknown
        (True, False)
        """
        return self.kind is RefusalKind.UNAVAILABLE

    def __str__(self) -> str:
        return f"{self.status}: {self.message or self.reason or self.kind.value}"


def heeded(retry_after: Seconds | None) -> Seconds:
    """The wait, in seconds, that a server's ``retry_after`` asks for, at most ``LONGEST_HEEDED``; 0 without one.

    >>> heeded(None), heeded(Seconds(2.0)), heeded(Seconds(600.0))
    (0.0, 2.0, 10.0)
    """
    return Seconds(0.0) if retry_after is None else min(retry_after, LONGEST_HEEDED)


def classify(status: int, reason: str = "") -> Refusal:
    """The refusal that an HTTP status and a one-word reason stand for.

    >>> classify(409).kind, classify(409, "AlreadyExists").kind, classify(502).kind, classify(418).kind
    (<RefusalKind.CONFLICT: 'conflict'>, <RefusalKind.ALREADY_EXISTS: 'already exists'>, \
<RefusalKind.UNAVAILABLE: 'unavailable'>, <RefusalKind.OTHER: 'other'>)
    """
    # 409 is a conflict or a name that is taken: only the reason of a ``Status`` tells them apart.
    by_status = RefusalKind.UNAVAILABLE if status >= 500 else _STATUSES.get(status, RefusalKind.OTHER)
    return Refusal(_REASONS.get(reason, by_status), status, reason=reason)


def read_refusal(status: int, body: bytes, retry_after: str = "") -> Refusal:
    """An answer that is no success, by its HTTP status, body and ``Retry-After`` header. Never raises.

    >>> str(read_refusal(404, b'{"kind":"Status","reason":"NotFound","message":"pods \\\\"db\\\\" not found"}'))
    '404: pods "db" not found'
    >>> read_refusal(429, b"slow down", "2").retry_after
    2.0
    """
    try:
        parsed = _STATUS.decode(body)
    except (msgspec.MsgspecError, RecursionError, ValueError):
        # Proxies answer in plain text or HTML.
        parsed = _Status(message=body[: SHOWN * 4].decode(errors="replace"))
    # A 5xx stays one whatever its body says, since the body may come from a proxy.
    plain = classify(status, parsed.reason[:SHOWN] if status < 500 else "")
    return Refusal(plain.kind, status, parsed.message[:SHOWN], parsed.reason[:SHOWN], _seconds(retry_after))


def refusal_in(status: JsonObject) -> Refusal:
    """The refusal in a ``Status`` object, such as that of an ERROR event in a watch.

    >>> refusal_in({"code": 410, "reason": "Expired", "message": "too old"}).kind
    <RefusalKind.GONE: 'gone'>
    """
    code = whole(status, "code")
    # A code outside of HTTP's range counts as a failure of the server, which leaves the outcome unknown.
    plain = classify(code if 100 <= code < 600 else 500, text(status, "reason")[:SHOWN])
    wait = whole(child(status, "details"), "retryAfterSeconds")
    return Refusal(plain.kind, plain.status, text(status, "message")[:SHOWN], plain.reason, _seconds(str(wait or "")))


class _Status(msgspec.Struct, frozen=True):
    message: str = ""
    reason: str = ""


_STATUS: Final = msgspec.json.Decoder(_Status)


def _seconds(header: str) -> Seconds | None:
    """The header's seconds; a date, or more than ``LONGEST_WAIT``, is ignored."""
    # RFC 9110 also allows a date, which would need this machine's clock to be right.
    if not (header.isascii() and header.isdecimal() and len(header) <= 6):
        return None
    return Seconds(float(header)) if int(header) <= LONGEST_WAIT else None
