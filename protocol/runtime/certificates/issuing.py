"""Creates and reads keys, CAs and certificates: elliptic curves (P-256, SHA-256), in PEM."""

from __future__ import annotations

import ipaddress
import os
import ssl
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from protocol.rotation import SKEW, Lifetime
from protocol.units import Seconds

Extension = tuple[x509.ExtensionType, bool]
"""An extension, and True if it is critical: a client that does not support it must reject the certificate."""


@dataclass(frozen=True, slots=True)
class CertifiedKey:
    """A private key and its certificate, possibly of a CA. The ``repr`` omits the key."""

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
    """The content of a certificate except key and issuer. It is valid from ``begin`` to ``end``."""

    subject: x509.Name
    begin: datetime
    end: datetime
    extensions: Sequence[Extension] = ()

    def signed(self, key: ec.EllipticCurvePublicKey, authority: CertifiedKey) -> x509.Certificate:
        """A certificate for ``key``, signed by ``authority``."""
        return self._signed(key, authority.certificate.subject, authority.key)

    def certified(self, authority: CertifiedKey) -> CertifiedKey:
        """A new key with a certificate signed by ``authority``."""
        key = new_key()
        return CertifiedKey(self.signed(key.public_key(), authority), key)

    def self_signed(self, key: ec.EllipticCurvePrivateKey) -> CertifiedKey:
        """``key`` with a self-signed certificate."""
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
    """A subject with only a common name, which X.509 limits to 64 characters."""
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name[:64])])


def load_certificate(context: ssl.SSLContext, certificate: bytes, key: bytes) -> None:
    """Load a certificate into ``context`` from memory, without a file on disk. Raises ``ssl.SSLError``."""
    descriptor = os.memfd_create("certificate")
    try:
        os.write(descriptor, certificate + key)
        # Python's ssl loads chains only from paths.
        context.load_cert_chain(f"/proc/self/fd/{descriptor}")
    finally:
        os.close(descriptor)


def certified_authority(name: str, begin: datetime, end: datetime) -> CertifiedKey:
    """A new CA with a key identifier, which its certificates can reference."""
    key = new_key()
    identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    return CertificateForm(common_name(name), begin, end, (*AUTHORITY, (identifier, False))).self_signed(key)


def signing_request(name: str, key: ec.EllipticCurvePrivateKey) -> bytes:
    """A signing request for a certificate of ``key``, PEM."""
    request = x509.CertificateSigningRequestBuilder().subject_name(common_name(name)).sign(key, hashes.SHA256())
    return request.public_bytes(serialization.Encoding.PEM)


def alternative_names(dns: Iterable[str], addresses: Iterable[str] = ()) -> list[Extension]:
    """The extension with a server's names, the only ones that TLS clients verify; none for a client."""
    names = general_names(dns, addresses)
    return [(x509.SubjectAlternativeName(names), False)] if names else []


def general_names(dns: Iterable[str], addresses: Iterable[str]) -> list[x509.GeneralName]:
    """DNS names and IP addresses in the form of a certificate."""
    return [*map(x509.DNSName, dns), *(x509.IPAddress(ipaddress.ip_address(address)) for address in addresses)]


def issuer_key(authority: CertifiedKey) -> Extension:
    """The extension that identifies the CA's key."""
    return x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.key.public_key()), False


def usage(*, signs: bool = False, encrypts: bool = False) -> Extension:
    """The extension with the allowed uses of a key: TLS signatures, and also signing certificates or encrypting
    keys.
    """
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
"""Extensions of a CA that signs certificates, but no intermediate CAs."""

NO_AUTHORITY: Final = (x509.BasicConstraints(ca=False, path_length=None), True)


AUTHORITY_NAME: Final = "autoscaling"


class UnusablePairError(ValueError):
    """A stored certificate is invalid or does not match its key. The message never contains any of the key."""


@dataclass(frozen=True, slots=True)
class Purpose:
    """The purpose of a certificate: a server with DNS names and IP addresses, or a client with a name and groups."""

    name: str
    dns: Sequence[str] = ()
    addresses: Sequence[str] = ()
    groups: Sequence[str] = ()

    @property
    def subject(self) -> x509.Name:
        """The subject in the form of a certificate."""
        # Kubernetes reads a client's groups from the organizations of its certificate.
        groups = (x509.NameAttribute(NameOID.ORGANIZATION_NAME, group) for group in self.groups)
        return x509.Name([*groups, *common_name(self.name)])

    @property
    def is_client(self) -> bool:
        """True if it authenticates a client."""
        return not self.dns and not self.addresses


@dataclass(frozen=True, slots=True)
class Pair:
    """A certificate and its key in PEM, as stored. The ``repr`` omits the key."""

    certificate: bytes
    key: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Issued:
    """A valid pair, decoded."""

    pair: Pair
    certificate: x509.Certificate
    private: ec.EllipticCurvePrivateKey = field(repr=False)

    @property
    def lifetime(self) -> Lifetime:
        """Its lifetime, from its creation."""
        # A certificate becomes valid SKEW before its creation.
        made = self.certificate.not_valid_before_utc.timestamp() + SKEW
        return Lifetime(made, self.certificate.not_valid_after_utc.timestamp())

    @property
    def serial(self) -> str:
        """Its serial number in hexadecimal."""
        return f"{self.certificate.serial_number:x}"

    def is_signed_by(self, authority: Issued) -> bool:
        """Return True if ``authority`` signed it."""
        try:
            self.certificate.verify_directly_issued_by(authority.certificate)
        except (ValueError, TypeError, InvalidSignature):
            return False
        return True

    def serves(self, purpose: Purpose) -> bool:
        """Return True if it was issued for ``purpose``."""
        # Compare in the form of certificates, where a name may be truncated and an address normalized.
        is_subject = self.certificate.subject == purpose.subject
        return is_subject and _names_of(self.certificate) == set(general_names(purpose.dns, purpose.addresses))


def read_pair(pair: Pair) -> Issued:
    """Decode and validate a pair. Raises ``UnusablePairError``."""
    try:
        certificate = x509.load_pem_x509_certificate(pair.certificate)
        key = serialization.load_pem_private_key(pair.key, None)
        # These are parsed lazily and may raise, so access them here.
        _ = certificate.not_valid_after_utc, certificate.subject, _names_of(certificate)
    except (ValueError, TypeError, x509.UnsupportedGeneralNameType) as error:
        raise UnusablePairError(f"invalid certificate or key: {type(error).__name__}") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != certificate.public_key():
        raise UnusablePairError("the key does not match the certificate")
    return Issued(pair, certificate, key)


def new_authority(lifetime: Seconds, wall: float) -> Issued:
    """A new CA, created at ``wall`` (seconds since 1970). Its name contains the time, so that names are unique."""
    name = f"{AUTHORITY_NAME} {datetime.fromtimestamp(wall, UTC):%Y-%m-%dT%H:%M:%SZ}"
    return _issued(certified_authority(name, *_validity(wall, wall + lifetime)))


def issue(authority: Issued, purpose: Purpose, lifetime: Seconds, wall: float) -> Issued:
    """A certificate for a new key, created at ``wall``; it expires with its CA at the latest."""
    signer = CertifiedKey(authority.certificate, authority.private)
    use = ExtendedKeyUsageOID.CLIENT_AUTH if purpose.is_client else ExtendedKeyUsageOID.SERVER_AUTH
    extensions = [NO_AUTHORITY, usage(), (x509.ExtendedKeyUsage([use]), False), issuer_key(signer)]
    # A client is identified only by its subject.
    extensions += alternative_names(purpose.dns, purpose.addresses)
    # It is not trusted after its CA has expired.
    begin, end = _validity(wall, min(wall + lifetime, authority.lifetime.end))
    return _issued(CertificateForm(purpose.subject, begin, end, extensions).certified(signer))


def _validity(made: float, end: float) -> tuple[datetime, datetime]:
    return datetime.fromtimestamp(made - SKEW, UTC), datetime.fromtimestamp(end, UTC)


def _issued(made: CertifiedKey) -> Issued:
    return Issued(Pair(made.certificate_pem, made.key_pem), made.certificate, made.key)


def _names_of(certificate: x509.Certificate) -> set[x509.GeneralName]:
    try:
        return set(certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value)
    except x509.ExtensionNotFound:
        return set()
