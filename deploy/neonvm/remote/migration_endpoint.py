"""Migration between two pods: both ends, TLS between their QEMUs, and the state of the guests afterwards.

Each migration has its own CA, whose key never leaves this process.
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
from deploy.neonvm.runner.resizer import Resizer
from deploy.neonvm.runner.sleep_migration import TARGET_NAME
from deploy.neonvm.texts import controller as texts
from deploy.neonvm.transfer_terms import TransferInfo
from protocol.guest.sleep import SLEEPING
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
    """CA of one migration. ``wall`` is Unix time."""

    def __init__(self, migration: str, wall: float) -> None:
        self._now = datetime.fromtimestamp(wall, UTC)
        # Kept only in memory, and gone with the migration.
        self._authority = self._form(f"migration {migration}", AUTHORITY).self_signed(new_key())

    @property
    def certificate(self) -> bytes:
        """The CA certificate that both ends trust, PEM."""
        return self._authority.certificate_pem

    def signed(self, request: bytes, name: str) -> bytes:
        """A certificate for ``request``, PEM, with the DNS name ``name``. Raises ``GuestError``."""
        # QEMU checks the subject alternative name, not the common name.
        extensions = NO_AUTHORITY, *alternative_names([name]), _USES, usage(encrypts=True)
        certificate = self._form(name, extensions).signed(_requesting(request), self._authority)
        return certificate.public_bytes(serialization.Encoding.PEM)

    def _form(self, name: str, extensions: Sequence[Extension]) -> CertificateForm:
        return CertificateForm(common_name(name), self._now - _SKEW, self._now + _VALID, extensions)


def _requesting(request: bytes) -> ec.EllipticCurvePublicKey:
    """The public key in ``request``. Raises ``GuestError``."""
    try:
        csr = x509.load_pem_x509_csr(request)
        is_signed, key = csr.is_signature_valid, csr.public_key()
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise GuestError(texts.REQUEST_UNREADABLE.format(error=error)) from error
    # The signature proves that the pod has the private key.
    if not is_signed:
        raise GuestError(texts.REQUEST_UNSIGNED)
    if not isinstance(key, ec.EllipticCurvePublicKey):
        raise GuestError(texts.REQUEST_FOR_OTHER_KEY)
    return key


_SOURCE_NAME = "source.migration.local"


async def open_tls(source: RunnerClient, target: RunnerClient, migration: str, wall: float, *, sleeps: bool) -> Route:
    """Install certificates on both ends, which neither sends nor receives a guest without. Each end trusts only those
    of this ``migration``. Copies the disk of a guest that ``sleeps``. Raises ``GuestError``, also for an open pod.
    """
    # The address of an open pod is not authenticated, so the guest's memory could go to any program.
    for end in (source, target):
        if end.endpoint.is_open:
            raise GuestError(f"{end.who}: {texts.OLD_RUNNER}")
    authority = MigrationAuthority(migration, wall)
    # The target first: the source prepares for the migration when it gets its certificate.
    for client, name in ((target, TARGET_NAME), (source, _SOURCE_NAME)):
        signed = authority.signed(await client.signing_request(migration), name)
        await client.use_certificate(migration, signed, authority.certificate)
    address = target.endpoint.address
    # The target listens on the wildcard address of the family by which the source reaches it.
    host, wildcard = (f"[{address}]", "[::]") if ":" in address else (address, "0.0.0.0")
    if sleeps:
        # The disk does not change before the guest runs.
        await target.receive_disk(wildcard.strip("[]"))
        await source.send_disk(address)
    uri = f"tcp:{host}:{MIGRATION_PORT}"
    # `inc`: also migrate the disk's changes relative to its backing file.
    return Route(f"tcp:{wildcard}:{MIGRATION_PORT}", {"uri": uri, "inc": True})


@dataclass(frozen=True, slots=True)
class MigrationEndpoint:
    """One end of a migration. ``uid`` is its pod's. ``guest`` and ``resizer`` are set if the pod is polled."""

    uid: str
    runner: RunnerClient
    machine: Callable[[], RemoteMachine]
    guest: RemoteGuest | None = None
    resizer: Resizer | None = None

    @property
    def sleeps(self) -> bool:
        """True if its guest was last known to be asleep."""
        return self.resizer is not None and self.resizer.state.phase in SLEEPING

    def leave(self) -> None:
        """Record that the guest no longer runs here, or never will."""
        if self.guest is not None and self.resizer is not None:
            self.guest.is_known = True
            self.resizer.leave()

    def arrive(self, source: MigrationEndpoint) -> None:
        """Record that the guest runs here, with the size it had in ``source`` if that is known, and poll it."""
        if self.guest is None or self.resizer is None:
            return
        if source.guest is not None and source.resizer is not None and source.guest.is_known:
            last = source.resizer.state
            # The guest keeps its size, so it is known before the first poll. A sleeping guest has no size.
            if last.phase not in SLEEPING:
                self.guest.is_known = True
                self.resizer.arrive(GuestState(GuestPhase.RUNNING, last.cpu, last.mem))
        self.resizer.poll_soon()


async def run_migration(
    transfer: Transfer,
    source: MigrationEndpoint,
    target: MigrationEndpoint,
    machines: tuple[RemoteMachine, RemoteMachine],
) -> TransferInfo:
    """Run the migration and record the outcome on both ends. Raises ``TransferError``, and ``CancelledError`` if
    another process has to finish it.
    """
    try:
        async with machines[0], machines[1]:
            info = await transfer.run()
    except TransferError:
        target.leave()
        raise
    # In this order, because the arrival copies the size from the source.
    target.arrive(source)
    source.leave()
    return info


def are_emulated(*ends: MigrationEndpoint) -> bool:
    """Return True if guests may be emulated on either end. Raises ``TransferError`` if only one end emulates."""
    accelerations = [end.guest.acceleration if end.guest is not None else None for end in ends]
    # The CPU models differ between KVM and TCG. An end whose accelerator is unknown does not prevent the migration.
    if len({acceleration.is_on for acceleration in accelerations if acceleration is not None}) > 1:
        raise TransferError(TransferFault.REFUSED, texts.OTHER_ACCELERATOR)
    # An unknown accelerator counts as emulated, because one pass works with both.
    return not all(acceleration is not None and acceleration.is_on for acceleration in accelerations)
