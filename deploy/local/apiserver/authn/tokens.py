"""Service-account tokens: JSON Web Tokens signed with the data directory's secret (HMAC-SHA256). Pure.

Times are whole Unix seconds. A token is valid from one second before its issue until just before its expiry.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from dataclasses import dataclass
from typing import Final

from deploy.local.apiserver.apimachinery.jsonvalue import JsonObject, NotJsonError, decode_object, encode

ISSUER: Final = "https://kubernetes.default.svc.cluster.local"
"""Issuer of the tokens, and the audience of tokens for the API server."""

# A shared secret is enough: only this server verifies its tokens.
_HEADER: Final = {"alg": "HS256", "typ": "JWT"}
# Kubernetes' private claim: the objects that a token is bound to.
_CLAIMS: Final = "kubernetes.io"


@dataclass(frozen=True, slots=True)
class Reference:
    """An object's name and uid; the uid is empty if unknown."""

    name: str
    uid: str


@dataclass(frozen=True, slots=True)
class TokenClaims:
    """Claims of a token. ``issued`` and ``expires`` are Unix seconds."""

    namespace: str
    account: Reference
    audiences: tuple[str, ...]
    issued: int
    expires: int
    token_id: str
    pod: Reference | None = None
    node: Reference | None = None

    @property
    def username(self) -> str:
        """The service account's user name in Kubernetes."""
        return f"system:serviceaccount:{self.namespace}:{self.account.name}"


class InvalidTokenError(Exception):
    """The token is not from this server, or not valid now; the message says why."""


def sign(claims: TokenClaims, key: bytes) -> str:
    """Sign ``claims``; return the token."""
    bound: JsonObject = {"namespace": claims.namespace, "serviceaccount": claims.account}
    bound |= {kind: bound_to for kind, bound_to in (("pod", claims.pod), ("node", claims.node)) if bound_to}
    payload = {
        "iss": ISSUER,
        "sub": claims.username,
        "aud": list(claims.audiences),
        "iat": claims.issued,
        "nbf": claims.issued,
        "exp": claims.expires,
        "jti": claims.token_id,
        _CLAIMS: bound,
    }
    signed = f"{_pack(encode(_HEADER))}.{_pack(encode(payload))}"
    return f"{signed}.{_pack(_signature(signed, key))}"


def verify(token: str, key: bytes, now: float) -> TokenClaims:
    """Verify a token of this server; return its claims. Raises ``InvalidTokenError``."""
    signed, _, signature = token.rpartition(".")
    try:
        # Constant-time comparison. Only a payload with a valid signature is parsed; `{}` raises KeyError below.
        genuine = hmac.compare_digest(_unpack(signature), _signature(signed, key))
        payload = decode_object(_unpack(signed.partition(".")[2])) if genuine else {}
        claims = _claims(payload)
    except (binascii.Error, NotJsonError, KeyError, TypeError, ValueError):
        raise InvalidTokenError("invalid bearer token") from None
    if not claims.issued <= now + 1 or now >= claims.expires:
        raise InvalidTokenError("token has expired")
    return claims


def _claims(payload: JsonObject) -> TokenClaims:
    bound = payload[_CLAIMS]
    return TokenClaims(
        namespace=bound["namespace"],
        account=Reference(**bound["serviceaccount"]),
        audiences=tuple(payload["aud"]),
        issued=payload["iat"],
        expires=payload["exp"],
        token_id=payload["jti"],
        pod=Reference(**bound["pod"]) if "pod" in bound else None,
        node=Reference(**bound["node"]) if "node" in bound else None,
    )


def _signature(signed: str, key: bytes) -> bytes:
    return hmac.new(key, signed.encode(), hashlib.sha256).digest()


def _pack(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def _unpack(text: str) -> bytes:
    # JSON Web Tokens omit the padding that Python's decoder needs.
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
