"""TLS between the QEMUs of two pods, with certificates for one migration; the authority's key is never written down."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Final

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID

from deploy.neonvm.addressing import MIGRATION_PORT
from deploy.neonvm.ports import GuestError
from deploy.neonvm.qemu.wire import Route
from deploy.neonvm.remote.runner_client import RunnerClient
from deploy.neonvm.runner.pod_runner import TARGET_NAME
from deploy.neonvm.texts import controller as texts
from protocol.runtime.certificates.forms import (
    AUTHORITY,
    NO_AUTHORITY,
    CertificateForm,
    Extension,
    alternative_names,
    common_name,
    new_key,
    usage,
)

_SKEW: Final = timedelta(hours=1)  # clocks of nodes differ
_VALID: Final = timedelta(hours=24)
_USES: Final = (x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]), False)


class MigrationAuthority:
    """Signs for one migration. ``wall`` is the time in seconds since 1970."""

    def __init__(self, move: str, wall: float) -> None:
        self._now = datetime.fromtimestamp(wall, UTC)
        # It lives in this object alone and is gone with the move.
        self._authority = self._form(f"migration {move}", AUTHORITY).self_signed(new_key())

    @property
    def certificate(self) -> bytes:
        """The authority that both ends trust, PEM."""
        return self._authority.certificate_pem

    def signed(self, request: bytes, name: str) -> bytes:
        """The certificate for ``request``, PEM, with the host name ``name``. Raises ``GuestError``."""
        # QEMU compares the host name with the alternative name, not with the common name.
        extensions = NO_AUTHORITY, *alternative_names([name]), _USES, usage(encrypts=True)
        certificate = self._form(name, extensions).signed(_requesting(request), self._authority)
        return certificate.public_bytes(serialization.Encoding.PEM)

    def _form(self, name: str, extensions: Sequence[Extension]) -> CertificateForm:
        return CertificateForm(common_name(name), self._now - _SKEW, self._now + _VALID, extensions)


def _requesting(request: bytes) -> ec.EllipticCurvePublicKey:
    """The key that ``request`` is for. Raises ``GuestError``."""
    try:
        csr = x509.load_pem_x509_csr(request)
        is_signed, key = csr.is_signature_valid, csr.public_key()
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise GuestError(texts.REQUEST_UNREADABLE.format(error=error)) from error
    # Proof that the pod holds the key.
    if not is_signed:
        raise GuestError(texts.REQUEST_UNSIGNED)
    if not isinstance(key, ec.EllipticCurvePublicKey):
        raise GuestError(texts.REQUEST_FOR_OTHER_KEY)
    return key


_SOURCE_NAME = "source.migration.local"


async def open_tls(source: RunnerClient, target: RunnerClient, move: str, wall: float) -> Route:
    """Gives both ends their certificates, without which neither sends or takes a guest. Each end trusts those of this
    ``move`` alone. Raises ``GuestError``, also for an open pod.
    """
    # Any program could be at the address of an open pod, and would be sent the guest's memory.
    for end in (source, target):
        if end.place.is_open:
            raise GuestError(f"{end.who}: {texts.OLD_RUNNER}")
    authority = MigrationAuthority(move, wall)
    # The target first: the source's certificate makes its pod prepare for the move.
    for client, name in ((target, TARGET_NAME), (source, _SOURCE_NAME)):
        signed = authority.signed(await client.signing_request(move), name)
        await client.use_certificate(move, signed, authority.certificate)
    address = target.place.address
    # The target listens on all its addresses, of the family by which the source reaches it.
    host, anywhere = (f"[{address}]", "[::]") if ":" in address else (address, "0.0.0.0")
    uri = f"tcp:{host}:{MIGRATION_PORT}"
    # `inc` sends along what the disk has beyond its image.
    return Route(f"tcp:{anywhere}:{MIGRATION_PORT}", {"uri": uri, "inc": True})
