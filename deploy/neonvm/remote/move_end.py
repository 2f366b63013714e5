"""A move between two pods: its ends, TLS between their QEMUs, and the state of the guests afterwards.

The authority that signs both certificates lives for this move alone, and its key is never written down.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID

from deploy.neonvm.addressing import MIGRATION_PORT
from deploy.neonvm.ports import GuestError, GuestPhase, GuestState, TransferError, TransferFault
from deploy.neonvm.qemu.machine import Route
from deploy.neonvm.qemu.transfer import Transfer
from deploy.neonvm.remote.remote_guest import RemoteGuest, RemoteMachine
from deploy.neonvm.remote.runner_client import RunnerClient
from deploy.neonvm.runner.pod_runner import TARGET_NAME
from deploy.neonvm.runner.resizer import Resizer
from deploy.neonvm.texts import controller as texts
from deploy.neonvm.transfer_terms import TransferInfo
from protocol.runtime.certificates.issuing import (
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


@dataclass(frozen=True, slots=True)
class MoveEnd:
    """One end. ``uid`` is its pod's; ``guest`` and ``resizer`` are there if the pod is followed."""

    uid: str
    runner: RunnerClient
    machine: Callable[[], RemoteMachine]
    guest: RemoteGuest | None = None
    resizer: Resizer | None = None

    def leave(self) -> None:
        """The guest runs elsewhere, or never will here."""
        if self.guest is not None and self.resizer is not None:
            self.guest.is_known = True
            self.resizer.leave()

    def arrive(self, source: MoveEnd) -> None:
        """The guest runs here, with the size that it had in ``source``, if that is known; it is looked at anyway."""
        if self.guest is None or self.resizer is None:
            return
        if source.guest is not None and source.resizer is not None and source.guest.is_known:
            # The size moves with the guest, so it is known before the first look.
            self.guest.is_known, had = True, source.resizer.state
            self.resizer.arrive(GuestState(GuestPhase.RUNNING, had.cpu, had.mem))
        self.resizer.look_again()


async def moved(
    transfer: Transfer, here: MoveEnd, there: MoveEnd, machines: tuple[RemoteMachine, RemoteMachine]
) -> TransferInfo:
    """Carries the move to its end; afterwards both ends know what has become of their guests. Raises ``TransferError``,
    and ``CancelledError`` if the move was left to another process.
    """
    try:
        async with machines[0], machines[1]:
            info = await transfer.run()
    except TransferError:
        there.leave()
        raise
    # First the arrival, which takes the size that the source had until now.
    there.arrive(here)
    here.leave()
    return info


def are_emulated(*ends: MoveEnd) -> bool:
    """Return True if guests are emulated there. Raises ``TransferError`` if the two ends cannot exchange a guest."""
    accelerations = [end.guest.acceleration if end.guest is not None else None for end in ends]
    # The guest's CPU would differ. An end whose acceleration is unknown does not hinder the move.
    if len({acceleration.is_on for acceleration in accelerations if acceleration is not None}) > 1:
        raise TransferError(TransferFault.REFUSED, texts.OTHER_ACCELERATOR)
    # An end whose acceleration is unknown counts as emulated: one pass works for both kinds.
    return not all(acceleration is not None and acceleration.is_on for acceleration in accelerations)
