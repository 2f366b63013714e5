"""Checks that a text can be an agent's token, without the API server (B.4). Pure.

This only saves reviews and proves nothing: the API server checks the signature (TokenReview).
"""

from __future__ import annotations

import base64
import re
from functools import lru_cache
from typing import Final

import msgspec

from protocol.units import Seconds

MAX_TOKEN: Final = 16 * 1024
"""Characters. Real ones have about 1,300."""

# A token counts as expired this long after its time, because clocks differ.
LEEWAY: Final = Seconds(3600.0)

_SHORTEST_SIGNATURE: Final = 32  # bytes: HS256, the shortest in use
_REMEMBERED_HEADERS: Final = 64
_SEGMENTS: Final = re.compile(r"([A-Za-z0-9_-]+)\.([A-Za-z0-9_-]+)\.([A-Za-z0-9_-]+)")
_SUBJECT: Final = re.compile(r"system:serviceaccount:[a-z0-9.-]{1,253}:[a-z0-9.-]{1,253}")


class _Header(msgspec.Struct, frozen=True):
    alg: str


class _BoundObject(msgspec.Struct, frozen=True):
    name: str


class _Kubernetes(msgspec.Struct, frozen=True):
    pod: _BoundObject | None = None
    node: _BoundObject | None = None


class _TokenClaims(msgspec.Struct, frozen=True):
    iss: str
    sub: str
    # RFC 7519 allows both forms.
    aud: list[str] | str
    exp: float
    kubernetes: _Kubernetes = msgspec.field(name="kubernetes.io")


_HEADER: Final = msgspec.json.Decoder(_Header)
_CLAIMS: Final = msgspec.json.Decoder(_TokenClaims)


def bearer_token(authorization: str | None) -> str | None:
    """The token in an ``Authorization`` header; None if missing or too long."""
    scheme, _, token = (authorization or "").partition(" ")
    token = token.strip()
    # Schemes are case-insensitive (RFC 9110).
    return token if scheme.lower() == "bearer" and 0 < len(token) <= MAX_TOKEN else None


def plausible_until(token: str, audience: str, wall: float) -> float | None:
    """Expiry of a token that the API server could accept for ``audience`` at ``wall``, both in Unix seconds; None if it
    cannot.
    """
    match = _SEGMENTS.fullmatch(token)
    if match is None:
        return None
    header, body, signature = match.groups()
    try:
        claims = _CLAIMS.decode(_decoded(body))
        is_signed = _names_algorithm(header) and _size(signature) >= _SHORTEST_SIGNATURE
    except (ValueError, RecursionError):
        return None
    return claims.exp if is_signed and _is_of_an_agent(claims, audience, wall) else None


def _is_of_an_agent(claims: _TokenClaims, audience: str, wall: float) -> bool:
    bound = claims.kubernetes
    return (
        bool(claims.iss)
        and _SUBJECT.fullmatch(claims.sub) is not None
        and (audience == claims.aud if isinstance(claims.aud, str) else audience in claims.aud)
        and wall < claims.exp + LEEWAY
        and (bound.pod is not None or bound.node is not None)
    )


# All tokens of a cluster share a few headers.
@lru_cache(_REMEMBERED_HEADERS)
def _names_algorithm(header: str) -> bool:
    # ``none`` is the unsigned token of RFC 7519.
    return _HEADER.decode(_decoded(header)).alg.lower() not in ("", "none")


def _size(segment: str) -> int:
    """Number of bytes that a segment encodes. Raises ``ValueError`` if its length is impossible."""
    # Four characters are three bytes; a single character is less than a byte.
    if len(segment) % 4 == 1:
        raise ValueError("a segment is not base64url")
    return len(segment) * 3 // 4


def _decoded(segment: str) -> bytes:
    # JSON Web Tokens have no padding, Python demands it.
    return base64.urlsafe_b64decode(segment + "=" * (-len(segment) % 4))
