"""Classifies an API server's refusals and failures. The only place that interprets its status codes.

After a 5xx the outcome is unknown: it may come from a proxy while the server still processes the request. Everything
else is a refusal, which changed nothing.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import msgspec

from protocol.kubernetes.objects import JsonObject, child, integer, text
from protocol.units import Seconds

SHOWN: Final = 300
"""Maximum characters of a server's message."""

LONGEST_RETRY_AFTER: Final = Seconds(10.0)
"""Maximum delay of a watch because of ``Retry-After``: its state becomes stale meanwhile."""

LONGEST_WAIT: Final = 3600
"""A ``Retry-After`` above this many seconds is ignored."""

# The beginning of messages of apimachinery's ``NewInvalid``.
_INVALID: Final = re.compile(r'[\w.]+ "[^"]*" is invalid: ')


class RefusalKind(StrEnum):
    """The kind of a refusal."""

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
    """A server's refusal. ``reason`` is its CamelCase reason, ``retry_after`` its Retry-After."""

    kind: RefusalKind
    status: int
    message: str = ""
    reason: str = ""
    retry_after: Seconds | None = None

    @property
    def is_by_validation(self) -> bool:
        """True if the server's built-in validation refused it, not a policy, webhook or quota of this cluster.

        Policies and webhooks may use the same status and reason, but their message begins differently.

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


def capped_retry_after(retry_after: Seconds | None) -> Seconds:
    """``retry_after`` in seconds, at most ``LONGEST_RETRY_AFTER``; 0 without one.

    >>> capped_retry_after(None), capped_retry_after(Seconds(2.0)), capped_retry_after(Seconds(600.0))
    (0.0, 2.0, 10.0)
    """
    return Seconds(0.0) if retry_after is None else min(retry_after, LONGEST_RETRY_AFTER)


def classify(status: int, reason: str = "") -> Refusal:
    """The refusal for an HTTP status and a reason.

    >>> classify(409).kind, classify(409, "AlreadyExists").kind, classify(502).kind, classify(418).kind
    (<RefusalKind.CONFLICT: 'conflict'>, <RefusalKind.ALREADY_EXISTS: 'already exists'>, \
<RefusalKind.UNAVAILABLE: 'unavailable'>, <RefusalKind.OTHER: 'other'>)
    """
    # 409 is a conflict or a name that is taken; only the reason of a ``Status`` distinguishes them.
    by_status = RefusalKind.UNAVAILABLE if status >= 500 else _STATUSES.get(status, RefusalKind.OTHER)
    return Refusal(_REASONS.get(reason, by_status), status, reason=reason)


def read_refusal(status: int, body: bytes, retry_after: str = "") -> Refusal:
    """The refusal in an unsuccessful response with this status, body and ``Retry-After`` header. Never raises.

    >>> str(read_refusal(404, b'{"kind":"Status","reason":"NotFound","message":"pods \\\\"db\\\\" not found"}'))
    '404: pods "db" not found'
    >>> read_refusal(429, b"slow down", "2").retry_after
    2.0
    """
    try:
        parsed = _STATUS.decode(body)
    except (msgspec.MsgspecError, RecursionError, ValueError):
        # Proxies respond with plain text or HTML, and the API server so to an unknown path: as one line.
        parsed = _Status(message=" ".join(body[: SHOWN * 4].decode(errors="replace").split()))
    # For a 5xx ignore the reason in the body, which may come from a proxy.
    plain = classify(status, parsed.reason[:SHOWN] if status < 500 else "")
    return Refusal(plain.kind, status, parsed.message[:SHOWN], parsed.reason[:SHOWN], _seconds(retry_after))


def refusal_in(status: JsonObject) -> Refusal:
    """The refusal in a ``Status`` object, such as in an ERROR event of a watch.

    >>> refusal_in({"code": 410, "reason": "Expired", "message": "too old"}).kind
    <RefusalKind.GONE: 'gone'>
    """
    code = integer(status, "code")
    # A code outside of HTTP's range counts as a server error, so the outcome is unknown.
    plain = classify(code if 100 <= code < 600 else 500, text(status, "reason")[:SHOWN])
    wait = integer(child(status, "details"), "retryAfterSeconds")
    return Refusal(plain.kind, plain.status, text(status, "message")[:SHOWN], plain.reason, _seconds(str(wait or "")))


class _Status(msgspec.Struct, frozen=True):
    message: str = ""
    reason: str = ""


_STATUS: Final = msgspec.json.Decoder(_Status)


def _seconds(header: str) -> Seconds | None:
    """The header's seconds; None for a date, or above ``LONGEST_WAIT``."""
    # RFC 9110 also allows a date, but that depends on a correct local clock.
    if not (header.isascii() and header.isdecimal() and len(header) <= 6):
        return None
    return Seconds(float(header)) if int(header) <= LONGEST_WAIT else None
