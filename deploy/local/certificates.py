"""Certificates of a cluster on this machine: an authority made once for each folder, and what it signs.

kubectl sends a bearer token over TLS only, so an API server for kubectl needs TLS; programs inside the namespaces of an
embedded cluster may speak plain HTTP.
"""

from __future__ import annotations

import ipaddress
import os
import ssl
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

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


@dataclass(frozen=True, slots=True)
class Authority:
    """Signs certificates. Clients must trust ``certificate_pem``."""

    key: ec.EllipticCurvePrivateKey
    certificate: x509.Certificate

    @property
    def certificate_pem(self) -> bytes:
        """The authority's certificate, PEM."""
        return self.certificate.public_bytes(serialization.Encoding.PEM)


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, now: datetime
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _SKEW)
        .not_valid_after(now + _VALID)
    )


def _private_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    encoding, form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    return key.private_bytes(encoding, form, serialization.NoEncryption())


def authority(directory: Path, now: datetime) -> Authority:
    """The authority kept in ``directory`` (``ca.pem``, ``ca.key``), made there if it is missing."""
    key_path, certificate_path = directory / "ca.key", directory / "ca.pem"
    if certificate_path.exists():
        key = serialization.load_pem_private_key(key_path.read_bytes(), None)
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise ValueError(f"{key_path}: expected an elliptic-curve key")
        return Authority(key, x509.load_pem_x509_certificate(certificate_path.read_bytes()))
    # Only the authority is stored, because clients trust it across restarts. What it signs is issued again on every
    # start, with the addresses of that start.
    made = _make_authority(now)
    directory.mkdir(parents=True, exist_ok=True)
    # The mode is set when the file is created; a later chmod would leave the key readable in between.
    descriptor = os.open(key_path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(_private_pem(made.key))
    certificate_path.write_bytes(made.certificate_pem)
    return made


def _make_authority(now: datetime) -> Authority:
    key = ec.generate_private_key(ec.SECP256R1())
    name = _name("local cluster")
    uses = x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=True,
        crl_sign=True,
        encipher_only=False,
        decipher_only=False,
    )
    certificate = (
        _builder(name, name, key, now)
        # path_length=0: the authority signs leaf certificates only, no further authorities.
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(uses, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    return Authority(key, certificate)


@dataclass(frozen=True, slots=True)
class CertificateSubject:
    """Subject of a certificate: a client's user and groups, or a server's names and IP addresses, or both."""

    user: str
    groups: Sequence[str] = ()
    names: Sequence[str] = ()
    addresses: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class KeyPair:
    """A certificate and its private key, PEM."""

    certificate_pem: bytes
    key_pem: bytes


def issue(signer: Authority, identity: CertificateSubject, now: datetime) -> KeyPair:
    """A certificate of a new key; it names a server if ``identity`` has names or addresses, otherwise a client."""
    key = ec.generate_private_key(ec.SECP256R1())
    # Kubernetes reads a client's groups from the organizations of its certificate, and the user from the common name.
    attributes = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, group) for group in identity.groups]
    subject = x509.Name([*attributes, x509.NameAttribute(NameOID.COMMON_NAME, identity.user)])
    alternatives: list[x509.GeneralName] = [x509.DNSName(name) for name in identity.names]
    alternatives += [x509.IPAddress(ipaddress.ip_address(address)) for address in identity.addresses]
    uses = [ExtendedKeyUsageOID.SERVER_AUTH if alternatives else ExtendedKeyUsageOID.CLIENT_AUTH]
    builder = (
        _builder(subject, signer.certificate.subject, key, now)
        .add_extension(x509.ExtendedKeyUsage(uses), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.key.public_key()), critical=False)
    )
    # TLS clients check only the alternative names of a server and ignore its common name.
    if alternatives:
        builder = builder.add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
    signed = builder.sign(signer.key, hashes.SHA256())
    return KeyPair(signed.public_bytes(serialization.Encoding.PEM), _private_pem(key))


def server_identity(user: str, addresses: Iterable[str]) -> CertificateSubject:
    """An API server at the IP ``addresses``, on loopback, and under the names that it has in every cluster."""
    return CertificateSubject(user, names=_NAMES, addresses=sorted({"127.0.0.1", "::1", *addresses}))


def server_context(signer: Authority, addresses: Iterable[str], now: datetime) -> ssl.SSLContext:
    """TLS context of a server at the IP ``addresses`` (and on loopback) for clients that trust ``signer``."""
    pair = issue(signer, server_identity("apiserver", addresses), now)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    # ssl loads keys from files only, so the pair is on disk for a moment.
    with tempfile.TemporaryDirectory() as directory:
        chain = Path(directory) / "server.pem"
        # The mode comes before the content, so that the key is never readable by others.
        chain.touch(mode=0o600)
        chain.write_bytes(pair.key_pem + pair.certificate_pem)
        context.load_cert_chain(chain)
    return context


def signing_key() -> tuple[bytes, bytes]:
    """A new key that signs tokens: the private one and the public one, PEM."""
    key = ec.generate_private_key(ec.SECP256R1())
    public = key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    return _private_pem(key), public
