"""Whether a text can be the token of an agent at all, judged without asking the API server (B.4). Pure.

Rules that hold here:

- This only spares questions; it proves nothing. The signature is for the API server to check (TokenReview).
- An agent's token is a JSON Web Token of the cluster's: three base64url segments; it names its issuer, a service
  account, our audience, an expiry, and the pod or node that it is bound to.
- Clocks differ: a token counts as expired only ``LEEWAY`` after its time.
"""

from __future__ import annotations

import base64
import re
from typing import Final

import msgspec

from protocol.units import Seconds

LONGEST_TOKEN: Final = 16 * 1024
"""Characters. Real ones have about 1,300."""

LEEWAY: Final = Seconds(3600.0)

_SHORTEST_SIGNATURE: Final = 32  # bytes: that of HS256, the shortest in use
_SEGMENTS: Final = re.compile(r"([A-Za-z0-9_-]+)\.([A-Za-z0-9_-]+)\.([A-Za-z0-9_-]+)")
_SUBJECT: Final = re.compile(r"system:serviceaccount:[a-z0-9.-]{1,253}:[a-z0-9.-]{1,253}")


class _Header(msgspec.Struct, frozen=True):
    alg: str


class _Bound(msgspec.Struct, frozen=True):
    name: str


class _Kubernetes(msgspec.Struct, frozen=True):
    pod: _Bound | None = None
    node: _Bound | None = None


class _Claims(msgspec.Struct, frozen=True):
    iss: str
    sub: str
    aud: list[str] | str
    exp: float
    kubernetes: _Kubernetes = msgspec.field(name="kubernetes.io")


_HEADER: Final = msgspec.json.Decoder(_Header)
_CLAIMS: Final = msgspec.json.Decoder(_Claims)


def bearer_token(authorization: str | None) -> str | None:
    """The token in an ``Authorization`` header; None where there is none, or one that is too long."""
    scheme, _, token = (authorization or "").partition(" ")
    token = token.strip()
    return token if scheme.lower() == "bearer" and 0 < len(token) <= LONGEST_TOKEN else None


def is_plausible(token: str, audience: str, wall: float) -> bool:
    """Whether the API server could accept ``token`` for ``audience`` at ``wall``, in seconds since 1970."""
    found = _SEGMENTS.fullmatch(token)
    if found is None:
        return False
    try:
        header, body, signature = (_decoded(segment) for segment in found.groups())
        claims = _CLAIMS.decode(body)
        algorithm = _HEADER.decode(header).alg
    except (ValueError, RecursionError):
        return False
    bound = claims.kubernetes
    return (
        algorithm.lower() not in ("", "none")
        and len(signature) >= _SHORTEST_SIGNATURE
        and bool(claims.iss)
        and _SUBJECT.fullmatch(claims.sub) is not None
        and (audience == claims.aud if isinstance(claims.aud, str) else audience in claims.aud)
        and wall < claims.exp + LEEWAY
        and (bound.pod is not None or bound.node is not None)
    )


def expiry(token: str) -> float:
    """When a plausible token ends, in seconds since 1970."""
    return _CLAIMS.decode(_decoded(token.split(".")[1])).exp


def _decoded(segment: str) -> bytes:
    return base64.urlsafe_b64decode(segment + "=" * (-len(segment) % 4))
