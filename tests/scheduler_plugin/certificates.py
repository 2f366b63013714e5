"""Self-signed certificates for tests of TLS."""

from __future__ import annotations

import ipaddress
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


def pair(name: str, host: str = "", authority: str = "") -> tuple[bytes, bytes]:
    """A certificate for ``host`` (127.0.0.1) and its key; the same for the same name.

    It is signed by that of ``authority``, and without one it is its own.
    """
    return _pair(name, host, authority)


def signed_by(name: str, authority: str) -> bytes:
    """The certificate ``name`` with the same key, signed by ``authority`` instead of by itself."""
    own, (issuer, signing) = x509.load_pem_x509_certificate(pair(name)[0]), _signer(authority)
    builder = x509.CertificateBuilder(issuer, own.subject, own.public_key(), x509.random_serial_number())
    builder = builder.not_valid_before(own.not_valid_before_utc).not_valid_after(own.not_valid_after_utc)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
    return builder.sign(signing, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


@cache
def _pair(name: str, host: str, authority: str) -> tuple[bytes, bytes]:
    address = x509.DNSName(host) if host else x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    issuer, signing = _signer(authority) if authority else (subject, key)
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName([address]), critical=False)
        .sign(signing, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return certificate.public_bytes(serialization.Encoding.PEM), private


def _signer(name: str) -> tuple[x509.Name, ec.EllipticCurvePrivateKey]:
    certificate, private = pair(name)
    key = serialization.load_pem_private_key(private, None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    return x509.load_pem_x509_certificate(certificate).subject, key


def files(folder: Path, name: str, authority: str = "") -> tuple[Path, Path]:
    """The same as files in ``folder``."""
    certificate, key = folder / f"{name}.crt", folder / f"{name}.key"
    for path, content in zip((certificate, key), pair(name, authority=authority), strict=True):
        path.write_bytes(content)
    return certificate, key
