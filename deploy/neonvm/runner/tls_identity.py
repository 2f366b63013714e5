"""The pod's side of the TLS between two QEMUs: a key that never leaves it, and a certificate for one migration.

The pod makes a key, and the controller signs a request for it with an authority that lives for this migration alone.
So no secret is ever sent or stored; QEMU reads the files once, and then they are removed.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from cryptography import x509

from deploy.neonvm.ports import GuestError
from deploy.neonvm.texts import runner as texts
from protocol.runtime.certificates.issuing import new_key, private_pem, signing_request


class TlsIdentity:
    """Requests and certificates of one pod. ``folder`` is where the files are while QEMU reads them."""

    def __init__(self, name: str, folder: Path) -> None:
        self._name = name
        self._folder = folder
        self._key = new_key()
        self._move = ""

    def request(self, move: str) -> str:
        """A signing request for the certificate of ``move``, PEM; a key of its own for each move."""
        if move != self._move:
            # A repeated request of one move keeps its key, so that a certificate on its way still fits.
            self._key, self._move = new_key(), move
        return signing_request(self._name, self._key).decode()

    def files(self, move: str, certificate: str, authority: str, *, is_server: bool) -> Path:
        """A folder as QEMU's ``tls-creds-x509`` reads it. Raises ``GuestError`` for a certificate that does not fit."""
        try:
            parsed = x509.load_pem_x509_certificate(certificate.encode())
        except ValueError as error:
            raise GuestError(texts.CERTIFICATE_UNREADABLE.format(error=error)) from error
        # A late answer for an earlier move would leave QEMU with a certificate that does not fit its key.
        if move != self._move or parsed.public_key() != self._key.public_key():
            raise GuestError(texts.OTHER_KEY)
        folder = Path(tempfile.mkdtemp(prefix="tls-", dir=self._folder))
        role = "server" if is_server else "client"
        (folder / "ca-cert.pem").write_text(authority)
        (folder / f"{role}-cert.pem").write_text(certificate)
        # Made with its mode before the secret is written, so that nobody can open it in between.
        (folder / f"{role}-key.pem").touch(mode=0o600)
        (folder / f"{role}-key.pem").write_bytes(private_pem(self._key))
        return folder

    @staticmethod
    def forget(place: Path) -> None:
        """QEMU has read the files."""
        shutil.rmtree(place, ignore_errors=True)
