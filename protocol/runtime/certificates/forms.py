"""Keys and certificates that our programs make: elliptic curves (P-256, SHA-256), in PEM."""

from __future__ import annotations

import ipaddress
import os
import ssl
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

Extension = tuple[x509.ExtensionType, bool]
"""True: critical. A reader that does not know a critical extension refuses the certificate."""


@dataclass(frozen=True, slots=True)
class CertifiedKey:
    """A private key and its certificate; an authority signs others with it. The ``repr`` does not show the key."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey = field(repr=False)

    @property
    def certificate_pem(self) -> bytes:
        """The certificate, PEM."""
        return self.certificate.public_bytes(serialization.Encoding.PEM)

    @property
    def key_pem(self) -> bytes:
        """The private key, PEM."""
        return private_pem(self.key)


@dataclass(frozen=True, slots=True)
class CertificateForm:
    """The content of a certificate, except its key and its issuer. ``begin`` and ``end`` are its validity."""

    subject: x509.Name
    begin: datetime
    end: datetime
    extensions: Sequence[Extension] = ()

    def signed(self, key: ec.EllipticCurvePublicKey, authority: CertifiedKey) -> x509.Certificate:
        """The certificate that ``authority`` signs for ``key``."""
        return self._signed(key, authority.certificate.subject, authority.key)

    def certified(self, authority: CertifiedKey) -> CertifiedKey:
        """A new key, with a certificate that ``authority`` has signed."""
        key = new_key()
        return CertifiedKey(self.signed(key.public_key(), authority), key)

    def self_signed(self, key: ec.EllipticCurvePrivateKey) -> CertifiedKey:
        """``key`` with a certificate that it has signed itself."""
        return CertifiedKey(self._signed(key.public_key(), self.subject, key), key)

    def _signed(
        self, key: ec.EllipticCurvePublicKey, issuer: x509.Name, signer: ec.EllipticCurvePrivateKey
    ) -> x509.Certificate:
        builder = x509.CertificateBuilder(issuer, self.subject, key, x509.random_serial_number())
        builder = builder.not_valid_before(self.begin).not_valid_after(self.end)
        for extension, is_critical in self.extensions:
            builder = builder.add_extension(extension, is_critical)
        return builder.sign(signer, hashes.SHA256())


def new_key() -> ec.EllipticCurvePrivateKey:
    """A new private key."""
    return ec.generate_private_key(ec.SECP256R1())


def private_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    """A private key, PEM."""
    encoding, form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    return key.private_bytes(encoding, form, serialization.NoEncryption())


def common_name(name: str) -> x509.Name:
    """A subject that has only a common name, which X.509 limits to 64 characters."""
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name[:64])])


def show(context: ssl.SSLContext, certificate: bytes, key: bytes) -> None:
    """Has ``context`` show a certificate that is in no file: OpenSSL reads it from memory. Raises ``ssl.SSLError``."""
    descriptor = os.memfd_create("certificate")
    try:
        os.write(descriptor, certificate + key)
        # Python's ssl loads chains from paths only.
        context.load_cert_chain(f"/proc/self/fd/{descriptor}")
    finally:
        os.close(descriptor)


def certified_authority(name: str, begin: datetime, end: datetime) -> CertifiedKey:
    """A new authority, for certificates that name its key."""
    key = new_key()
    identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    return CertificateForm(common_name(name), begin, end, (*AUTHORITY, (identifier, False))).self_signed(key)


def signing_request(name: str, key: ec.EllipticCurvePrivateKey) -> bytes:
    """A request for a certificate of ``key``, PEM."""
    request = x509.CertificateSigningRequestBuilder().subject_name(common_name(name)).sign(key, hashes.SHA256())
    return request.public_bytes(serialization.Encoding.PEM)


def alternative_names(dns: Iterable[str], addresses: Iterable[str] = ()) -> list[Extension]:
    """The names of a server, which are all that TLS clients check; none for a client."""
    names = general_names(dns, addresses)
    return [(x509.SubjectAlternativeName(names), False)] if names else []


def general_names(dns: Iterable[str], addresses: Iterable[str]) -> list[x509.GeneralName]:
    """DNS names and IP addresses as a certificate has them."""
    return [*map(x509.DNSName, dns), *(x509.IPAddress(ipaddress.ip_address(address)) for address in addresses)]


def issuer_key(authority: CertifiedKey) -> Extension:
    """Names the key of the authority."""
    return x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.key.public_key()), False


def usage(*, signs: bool = False, encrypts: bool = False) -> Extension:
    """Uses of a key: its signature in TLS, and also ``signs`` certificates or ``encrypts`` other keys."""
    usages = x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=encrypts,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs,
        crl_sign=signs,
        encipher_only=False,
        decipher_only=False,
    )
    return usages, True


AUTHORITY: Final = ((x509.BasicConstraints(ca=True, path_length=0), True), usage(signs=True))
"""Extensions of an authority that signs certificates, but no further authorities."""

NO_AUTHORITY: Final = (x509.BasicConstraints(ca=False, path_length=None), True)
