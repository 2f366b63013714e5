"""Certificates of a cluster on this machine: an authority made once for each folder, and what it signs.

kubectl sends a bearer token over TLS only, so an API server for kubectl needs TLS; programs inside the namespaces of an
embedded cluster may speak plain HTTP.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from protocol.runtime.certificates.forms import (
    CertificateForm,
    CertifiedKey,
    alternative_names,
    certified_authority,
    issuer_key,
    new_key,
    private_pem,
    show,
)

_VALID: Final = timedelta(days=3650)
# The clock of a container or VM that checks a certificate may run a little behind ours.
_SKEW: Final = timedelta(hours=1)
# Besides localhost, the names of the Service `kubernetes`, through which pods of any cluster reach the API server.
_NAMES: Final = (
    "localhost",
    "kubernetes",
    "kubernetes.default",
    "kubernetes.default.svc",
    "kubernetes.default.svc.cluster.local",
)


def authority(directory: Path, now: datetime) -> CertifiedKey:
    """The authority kept in ``directory`` (``ca.pem``, ``ca.key``), made there if it is missing."""
    key_path, certificate_path = directory / "ca.key", directory / "ca.pem"
    if certificate_path.exists():
        key = serialization.load_pem_private_key(key_path.read_bytes(), None)
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise ValueError(f"{key_path}: expected an elliptic-curve key")
        return CertifiedKey(x509.load_pem_x509_certificate(certificate_path.read_bytes()), key)
    # Only the authority is stored, because clients trust it across restarts. What it signs is issued again on every
    # start, with the addresses of that start.
    made = certified_authority("local cluster", now - _SKEW, now + _VALID)
    directory.mkdir(parents=True, exist_ok=True)
    # The mode is set when the file is created; a later chmod would leave the key readable in between.
    descriptor = os.open(key_path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(made.key_pem)
    certificate_path.write_bytes(made.certificate_pem)
    return made


@dataclass(frozen=True, slots=True)
class CertificateSubject:
    """Subject of a certificate: a client's user and groups, or a server's names and IP addresses, or both."""

    user: str
    groups: Sequence[str] = ()
    names: Sequence[str] = ()
    addresses: Sequence[str] = ()


def issue(signer: CertifiedKey, identity: CertificateSubject, now: datetime) -> CertifiedKey:
    """A certificate of a new key; it names a server if ``identity`` has names or addresses, otherwise a client."""
    # Kubernetes reads a client's groups from the organizations of its certificate, and the user from the common name.
    attributes = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, group) for group in identity.groups]
    subject = x509.Name([*attributes, x509.NameAttribute(NameOID.COMMON_NAME, identity.user)])
    alternatives = alternative_names(identity.names, identity.addresses)
    use = ExtendedKeyUsageOID.SERVER_AUTH if alternatives else ExtendedKeyUsageOID.CLIENT_AUTH
    extensions = (x509.ExtendedKeyUsage([use]), False), issuer_key(signer), *alternatives
    return CertificateForm(subject, now - _SKEW, now + _VALID, extensions).certified(signer)


def server_identity(user: str, addresses: Iterable[str]) -> CertificateSubject:
    """An API server at the IP ``addresses``, on loopback, and under the names that it has in every cluster."""
    return CertificateSubject(user, names=_NAMES, addresses=sorted({"127.0.0.1", "::1", *addresses}))


def server_context(signer: CertifiedKey, addresses: Iterable[str], now: datetime) -> ssl.SSLContext:
    """TLS context of a server at the IP ``addresses`` (and on loopback) for clients that trust ``signer``."""
    pair = issue(signer, server_identity("apiserver", addresses), now)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    show(context, pair.certificate_pem, pair.key_pem)
    return context


def signing_key() -> tuple[bytes, bytes]:
    """A new key that signs tokens: the private one and the public one, PEM."""
    key = new_key()
    public = key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    return private_pem(key), public
