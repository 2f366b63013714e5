"""Tokens of service accounts with other times, and with another signature."""

from __future__ import annotations

import json
import time
from base64 import urlsafe_b64decode, urlsafe_b64encode
from pathlib import Path
from typing import Any, Final

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.ec import ECDSA, EllipticCurvePrivateKey
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature
from cryptography.hazmat.primitives.serialization import load_pem_private_key

_HALF: Final = 32
"""Bytes of each number of an ES256 signature."""


def dated(token: str, key_file: Path, seconds: float) -> str:
    """The token as if it had been given an hour ago and ended this many ``seconds`` from now, signed by the cluster."""
    head, body, _ = token.split(".")
    now = int(time.time())
    claims: dict[str, Any] = json.loads(_decoded(body))
    times = {"iat": now - 3600, "nbf": now - 3600, "exp": int(now + seconds)}
    signed = f"{head}.{_encoded(json.dumps({**claims, **times}).encode())}"
    key = load_pem_private_key(key_file.read_bytes(), password=None)
    assert isinstance(key, EllipticCurvePrivateKey)
    numbers = decode_dss_signature(key.sign(signed.encode(), ECDSA(hashes.SHA256())))
    return f"{signed}.{_encoded(b''.join(each.to_bytes(_HALF, 'big') for each in numbers))}"


def forged(token: str) -> str:
    """The token with another signature."""
    head, body, signature = token.split(".")
    turned = bytes(each ^ 1 for each in _decoded(signature))
    return f"{head}.{body}.{_encoded(turned)}"


def _decoded(part: str) -> bytes:
    return urlsafe_b64decode(part + "=" * (-len(part) % 4))


def _encoded(part: bytes) -> str:
    return urlsafe_b64encode(part).decode().rstrip("=")
