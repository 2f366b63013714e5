"""The certificate with which the API server speaks TLS: its own authority, made once for each data directory.

Rules that hold here:

- kubectl sends a bearer token over TLS only, so TLS is what makes this server usable with it; programs inside the
  cluster's namespaces may speak plain HTTP.
- The authority signs one server certificate for loopback names and the addresses listened on; it is made again on
  every start, so that it names those of today. Only the authority is kept, and clients trust it.
"""

from __future__ import annotations

import ipaddress
import os
import ssl
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

_VALID: Final = timedelta(days=3650)
_SKEW: Final = timedelta(hours=1)
_NAMES: Final = ("localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc")


@dataclass(frozen=True, slots=True)
class Authority:
    """Signs server certificates. ``certificate_pem`` is what clients must trust."""

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
    """The authority kept in ``directory`` (``ca.pem``, ``ca.key``), made there where it is missing."""
    key_path, certificate_path = directory / "ca.key", directory / "ca.pem"
    if certificate_path.exists():
        key = serialization.load_pem_private_key(key_path.read_bytes(), None)
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise ValueError(f"{key_path}: expected an elliptic-curve key")
        return Authority(key, x509.load_pem_x509_certificate(certificate_path.read_bytes()))
    made = _make_authority(now)
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
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(uses, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    return Authority(key, certificate)


def server_context(signer: Authority, addresses: Iterable[str], now: datetime) -> ssl.SSLContext:
    """What a server at the IP ``addresses`` (and on loopback) needs to speak TLS with those who trust ``signer``."""
    key = ec.generate_private_key(ec.SECP256R1())
    every = sorted({"127.0.0.1", "::1", *addresses})
    alternatives: list[x509.GeneralName] = [x509.DNSName(name) for name in _NAMES]
    alternatives += [x509.IPAddress(ipaddress.ip_address(address)) for address in every]
    certificate = (
        _builder(_name("apiserver"), signer.certificate.subject, key, now)
        .add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.key.public_key()), critical=False)
        .sign(signer.key, hashes.SHA256())
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    with tempfile.TemporaryDirectory() as directory:
        chain = Path(directory) / "server.pem"
        chain.touch(mode=0o600)
        chain.write_bytes(_private_pem(key) + certificate.public_bytes(serialization.Encoding.PEM))
        context.load_cert_chain(chain)
    return context
