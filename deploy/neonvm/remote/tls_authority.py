"""An authority that signs the two certificates of one migration; its key is never written down."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from deploy.neonvm.ports import GuestError

_SKEW: Final = timedelta(hours=1)  # clocks of nodes differ
_VALID: Final = timedelta(hours=24)
_USES: Final = (ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH)


class MigrationAuthority:
    """Signs for one migration. ``wall`` is the time in seconds since 1970."""

    def __init__(self, move: str, wall: float) -> None:
        self._now = datetime.fromtimestamp(wall, UTC)
        # It lives in this object alone and is gone with the move.
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"migration {move}"[:64])])
        # No authorities below this one.
        constraints = x509.BasicConstraints(ca=True, path_length=0)
        builder = self._builder(self._subject, self._key.public_key()).add_extension(constraints, critical=True)
        self._certificate = builder.add_extension(_usage(signs=True), critical=True).sign(self._key, hashes.SHA256())

    @property
    def certificate(self) -> bytes:
        """The authority that both ends trust, PEM."""
        return self._certificate.public_bytes(serialization.Encoding.PEM)

    def signed(self, request: bytes, name: str) -> bytes:
        """The certificate for ``request``, PEM, with the host name ``name``. Raises ``GuestError``."""
        key = _requesting(request)
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name[:64])])
        builder = (
            self._builder(subject, key)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            # QEMU compares the host name with this, not with the common name.
            .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
            .add_extension(x509.ExtendedKeyUsage(_USES), critical=False)
            .add_extension(_usage(signs=False), critical=True)
        )
        return builder.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)

    def _builder(self, subject: x509.Name, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._subject)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(self._now - _SKEW)
            .not_valid_after(self._now + _VALID)
        )


def _requesting(request: bytes) -> ec.EllipticCurvePublicKey:
    """The key that ``request`` is for. Raises ``GuestError``."""
    try:
        csr = x509.load_pem_x509_csr(request)
        is_signed, key = csr.is_signature_valid, csr.public_key()
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise GuestError(f"a signing request that cannot be read: {error}") from error
    # Proof that the pod holds the key.
    if not is_signed:
        raise GuestError("a signing request that its own key has not signed")
    if not isinstance(key, ec.EllipticCurvePublicKey):
        raise GuestError("a signing request for another kind of key")
    return key


def _usage(*, signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=not signs,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs,
        crl_sign=signs,
        encipher_only=False,
        decipher_only=False,
    )
