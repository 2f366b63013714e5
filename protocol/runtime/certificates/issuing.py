"""Keys, authorities and certificates that our programs make and read: elliptic curves (P-256, SHA-256), in PEM."""

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

from protocol.rotation import SKEW, Life
from protocol.units import Seconds

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
    """Have ``context`` show a certificate that is in no file: OpenSSL reads it from memory. Raises ``ssl.SSLError``."""
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


AUTHORITY_NAME: Final = "autoscaling"


class UnusablePairError(ValueError):
    """A stored certificate does not match its key. The message never has a part of the key."""


@dataclass(frozen=True, slots=True)
class Purpose:
    """Subject of a certificate: a server's DNS names and IP addresses, or a client by its name and groups."""

    name: str
    dns: Sequence[str] = ()
    addresses: Sequence[str] = ()
    groups: Sequence[str] = ()

    @property
    def subject(self) -> x509.Name:
        """The name as a certificate has it."""
        # Kubernetes reads a client's groups from the organizations of its certificate.
        groups = (x509.NameAttribute(NameOID.ORGANIZATION_NAME, group) for group in self.groups)
        return x509.Name([*groups, *common_name(self.name)])

    @property
    def is_client(self) -> bool:
        """True if it shows who a client is."""
        return not self.dns and not self.addresses


@dataclass(frozen=True, slots=True)
class Pair:
    """A certificate and its key in PEM, as they are stored. The ``repr`` does not show the key."""

    certificate: bytes
    key: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Issued:
    """A usable pair, decoded."""

    pair: Pair
    certificate: x509.Certificate
    private: ec.EllipticCurvePrivateKey = field(repr=False)

    @property
    def life(self) -> Life:
        """Its creation and its end."""
        # A certificate says from when it is valid, which is SKEW before it was made.
        made = self.certificate.not_valid_before_utc.timestamp() + SKEW
        return Life(made, self.certificate.not_valid_after_utc.timestamp())

    @property
    def serial(self) -> str:
        """Its serial number, in hexadecimal digits."""
        return f"{self.certificate.serial_number:x}"

    def is_signed_by(self, authority: Issued) -> bool:
        """Return True if that authority has signed it."""
        try:
            self.certificate.verify_directly_issued_by(authority.certificate)
        except (ValueError, TypeError, InvalidSignature):
            return False
        return True

    def serves(self, purpose: Purpose) -> bool:
        """Return True if it was made for that purpose."""
        # Compared in the form that certificates have: a name may be shortened there, an address written otherwise.
        is_subject = self.certificate.subject == purpose.subject
        return is_subject and _names_of(self.certificate) == set(general_names(purpose.dns, purpose.addresses))


def read_pair(pair: Pair) -> Issued:
    """Decode and checks a pair. Raises ``UnusablePairError``."""
    try:
        certificate = x509.load_pem_x509_certificate(pair.certificate)
        key = serialization.load_pem_private_key(pair.key, None)
        # These are parsed lazily and may raise: better here than in use.
        _ = certificate.not_valid_after_utc, certificate.subject, _names_of(certificate)
    except (ValueError, TypeError, x509.UnsupportedGeneralNameType) as error:
        raise UnusablePairError(f"no certificate with its key: {type(error).__name__}") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != certificate.public_key():
        raise UnusablePairError("the key is not that of the certificate")
    return Issued(pair, certificate, key)


def new_authority(life: Seconds, wall: float) -> Issued:
    """A new authority, made at ``wall`` (seconds since 1970), which is in its name, so that no two names are alike."""
    name = f"{AUTHORITY_NAME} {datetime.fromtimestamp(wall, UTC):%Y-%m-%dT%H:%M:%SZ}"
    return _issued(certified_authority(name, *_validity(wall, wall + life)))


def issue(authority: Issued, purpose: Purpose, life: Seconds, wall: float) -> Issued:
    """A certificate for a new key, made at ``wall``; it ends with its authority at the latest."""
    signer = CertifiedKey(authority.certificate, authority.private)
    use = ExtendedKeyUsageOID.CLIENT_AUTH if purpose.is_client else ExtendedKeyUsageOID.SERVER_AUTH
    extensions = [NO_AUTHORITY, usage(), (x509.ExtendedKeyUsage([use]), False), issuer_key(signer)]
    # A client is known by its name alone.
    extensions += alternative_names(purpose.dns, purpose.addresses)
    # Nobody trusts it once its authority has ended.
    begin, end = _validity(wall, min(wall + life, authority.life.end))
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
