"""Certificates of a local cluster: one CA per cluster folder, and the certificates that it signs.

kubectl sends bearer tokens over TLS only, so the API server needs TLS for them. Programs inside the cluster's
network namespaces use plain HTTP.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path
from typing import Final

from cryptography.hazmat.primitives import serialization

from deploy.local.private_file import write_private
from protocol.runtime.certificates import issuing
from protocol.units import Seconds

_LIFE: Final = Seconds(3650 * 86400.0)
# Besides localhost, the names of the Service `kubernetes`, through which pods of any cluster reach the API server.
_NAMES: Final = (
    "localhost",
    "kubernetes",
    "kubernetes.default",
    "kubernetes.default.svc",
    "kubernetes.default.svc.cluster.local",
)


def authority(directory: Path, now: datetime) -> issuing.Issued:
    """The CA in ``directory`` (``ca.pem``, ``ca.key``); created if it does not exist."""
    key_path, certificate_path = directory / "ca.key", directory / "ca.pem"
    if certificate_path.exists():
        return issuing.read_pair(issuing.Pair(certificate_path.read_bytes(), key_path.read_bytes()))
    # Only the CA is stored, because clients trust it across restarts. Leaf certificates are issued at every start,
    # because addresses change.
    made = issuing.new_authority(_LIFE, now.timestamp())
    write_private(key_path, made.pair.key.decode())
    certificate_path.write_bytes(made.pair.certificate)
    return made


def issue(signer: issuing.Issued, purpose: issuing.Purpose, now: datetime) -> issuing.Pair:
    """Issue a certificate for a new key."""
    return issuing.issue(signer, purpose, _LIFE, now.timestamp()).pair


def server_identity(user: str, addresses: Iterable[str]) -> issuing.Purpose:
    """Serving identity of an API server: IP ``addresses``, loopback, and the names of Service ``kubernetes``."""
    return issuing.Purpose(user, _NAMES, sorted({"127.0.0.1", "::1", *addresses}))


def server_context(signer: issuing.Issued, addresses: Iterable[str], now: datetime) -> ssl.SSLContext:
    """TLS context of a server at the IP ``addresses`` (and on loopback) for clients that trust ``signer``."""
    pair = issue(signer, server_identity("apiserver", addresses), now)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    issuing.load_certificate(context, pair.certificate, pair.key)
    return context


def signing_key() -> tuple[bytes, bytes]:
    """A new key pair for signing tokens: private and public key, PEM."""
    key = issuing.new_key()
    public = key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    return issuing.private_pem(key), public
