"""Makes and reads authorities and certificates: elliptic curves, in PEM."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Final

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from protocol.units import Seconds
from scheduler_plugin.injector.certificates.rotation import Life

SKEW: Final = timedelta(hours=1)
"""Certificates are valid from this long before they are made, for clients whose clocks are behind."""

AUTHORITY_NAME: Final = "autoscaling"


class UnusablePairError(ValueError):
    """A stored certificate does not match its key. The message never has a part of the key."""


@dataclass(frozen=True, slots=True)
class Purpose:
    """Subject of a certificate: a server's DNS names and IP addresses, or a client by its name alone."""

    name: str
    dns: Sequence[str] = ()
    addresses: Sequence[str] = ()

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
        made = self.certificate.not_valid_before_utc + SKEW
        return Life(made.timestamp(), self.certificate.not_valid_after_utc.timestamp())

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
        return _purpose_of(self.certificate) == (
            purpose.name,
            frozenset(purpose.dns),
            frozenset(purpose.addresses),
        )


def read_pair(pair: Pair) -> Issued:
    """Decodes and checks a pair. Raises ``UnusablePairError``."""
    try:
        certificate = x509.load_pem_x509_certificate(pair.certificate)
        key = serialization.load_pem_private_key(pair.key, None)
        # These are parsed lazily and may raise: better here than in use.
        _ = certificate.not_valid_after_utc, _purpose_of(certificate)
    except (ValueError, TypeError, x509.UnsupportedGeneralNameType) as error:
        raise UnusablePairError(f"no certificate with its key: {type(error).__name__}") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != certificate.public_key():
        raise UnusablePairError("the key is not that of the certificate")
    return Issued(pair, certificate, key)


def new_authority(life: Seconds, wall: float) -> Issued:
    """A new authority, made at ``wall`` (seconds since 1970), which is in its name, so that no two names are alike."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = _name(f"{AUTHORITY_NAME} {datetime.fromtimestamp(wall, UTC):%Y-%m-%dT%H:%M:%SZ}")
    builder = (
        _builder(name, name, key, wall, wall + life)
        # It signs certificates, but no other authorities.
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )
    return _finished(builder, key, key)


def issue(authority: Issued, purpose: Purpose, life: Seconds, wall: float) -> Issued:
    """A certificate for a new key, made at ``wall``; it ends with its authority at the latest."""
    key = ec.generate_private_key(ec.SECP256R1())
    # Nobody trusts it once its authority has ended.
    end = min(wall + life, authority.life.end)
    use = ExtendedKeyUsageOID.CLIENT_AUTH if purpose.is_client else ExtendedKeyUsageOID.SERVER_AUTH
    from_authority = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.private.public_key())
    builder = (
        _builder(_name(purpose.name), authority.certificate.subject, key, wall, end)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([use]), critical=False)
        .add_extension(from_authority, critical=False)
    )
    # A client is known by its name alone.
    if not purpose.is_client:
        names: list[x509.GeneralName] = [x509.DNSName(name) for name in purpose.dns]
        names += [x509.IPAddress(ipaddress.ip_address(address)) for address in purpose.addresses]
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    return _finished(builder, key, authority.private)


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, made: float, end: float
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(datetime.fromtimestamp(made, UTC) - SKEW)
        .not_valid_after(datetime.fromtimestamp(end, UTC))
    )


def _finished(
    builder: x509.CertificateBuilder, key: ec.EllipticCurvePrivateKey, signer: ec.EllipticCurvePrivateKey
) -> Issued:
    certificate = builder.sign(signer, hashes.SHA256())
    encoding, form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    pair = Pair(certificate.public_bytes(encoding), key.private_bytes(encoding, form, serialization.NoEncryption()))
    return Issued(pair, certificate, key)


def _name(common: str) -> x509.Name:
    # X.509 allows 64 characters in a common name.
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common[:64])])


def _purpose_of(certificate: x509.Certificate) -> tuple[str, frozenset[str], frozenset[str]]:
    common = [str(attribute.value) for attribute in certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)]
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return common[0] if common else "", frozenset(), frozenset()
    addresses = frozenset(map(str, names.get_values_for_type(x509.IPAddress)))
    return common[0] if common else "", frozenset(names.get_values_for_type(x509.DNSName)), addresses


def _usage(*, signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        # With elliptic curves a key only signs.
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs,
        crl_sign=signs,
        encipher_only=False,
        decipher_only=False,
    )
