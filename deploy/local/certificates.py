"""Certificates of a cluster on this machine: an authority made once for each folder, and what it signs.

kubectl sends a bearer token over TLS only, so an API server for kubectl needs TLS; programs inside the namespaces of an
embedded cluster may speak plain HTTP.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path
from typing import Final

from cryptography.hazmat.primitives import serialization

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
    """The authority kept in ``directory`` (``ca.pem``, ``ca.key``), made there if it is missing."""
    key_path, certificate_path = directory / "ca.key", directory / "ca.pem"
    if certificate_path.exists():
        return issuing.read_pair(issuing.Pair(certificate_path.read_bytes(), key_path.read_bytes()))
    # Only the authority is stored, because clients trust it across restarts. What it signs is issued again on every
    # start, with the addresses of that start.
    made = issuing.new_authority(_LIFE, now.timestamp())
    directory.mkdir(parents=True, exist_ok=True)
    # The mode is set when the file is created; a later chmod would leave the key readable in between.
    descriptor = os.open(key_path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(made.pair.key)
    certificate_path.write_bytes(made.pair.certificate)
    return made


def issue(signer: issuing.Issued, purpose: issuing.Purpose, now: datetime) -> issuing.Pair:
    """A certificate of a new key."""
    return issuing.issue(signer, purpose, _LIFE, now.timestamp()).pair


def server_identity(user: str, addresses: Iterable[str]) -> issuing.Purpose:
    """An API server at the IP ``addresses``, on loopback, and under the names that it has in every cluster."""
    return issuing.Purpose(user, _NAMES, sorted({"127.0.0.1", "::1", *addresses}))


def server_context(signer: issuing.Issued, addresses: Iterable[str], now: datetime) -> ssl.SSLContext:
    """TLS context of a server at the IP ``addresses`` (and on loopback) for clients that trust ``signer``."""
    pair = issue(signer, server_identity("apiserver", addresses), now)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    issuing.show(context, pair.certificate, pair.key)
    return context


def signing_key() -> tuple[bytes, bytes]:
    """A new key that signs tokens: the private one and the public one, PEM."""
    key = issuing.new_key()
    public = key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    return issuing.private_pem(key), public
