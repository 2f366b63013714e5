"""Makes and reads authorities and certificates: elliptic curves, in PEM."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from protocol.rotation import SKEW, Life
from protocol.runtime.certificates.forms import (
    NO_AUTHORITY,
    CertificateForm,
    CertifiedKey,
    alternative_names,
    certified_authority,
    common_name,
    general_names,
    issuer_key,
    usage,
)
from protocol.units import Seconds

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
    """Decodes and checks a pair. Raises ``UnusablePairError``."""
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
