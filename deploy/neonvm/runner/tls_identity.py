"""The pod's side of the TLS between two QEMUs: a key that never leaves it, and a certificate for one migration.

The pod makes a key, and the controller signs a request for it with an authority that lives for this migration alone.
So no secret is ever sent or stored; QEMU reads the files once, and then they are removed.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from deploy.neonvm.ports import GuestError


class TlsIdentity:
    """Requests and certificates of one pod. ``folder`` is where the files are while QEMU reads them."""

    def __init__(self, name: str, folder: Path) -> None:
        self._name = name
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._move = ""

    def request(self, move: str) -> str:
        """A signing request for the certificate of ``move``, PEM; a key of its own for each move."""
        if move != self._move:
            # A repeated request of one move keeps its key, so that a certificate on its way still fits.
            self._key, self._move = ec.generate_private_key(ec.SECP256R1()), move
        # X.509 limits a common name to 64 characters.
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, self._name[:64])])
        csr = x509.CertificateSigningRequestBuilder().subject_name(subject).sign(self._key, hashes.SHA256())
        return csr.public_bytes(serialization.Encoding.PEM).decode()

    def files(self, move: str, certificate: str, authority: str, *, is_server: bool) -> Path:
        """A folder as QEMU's ``tls-creds-x509`` reads it. Raises ``GuestError`` for a certificate that does not fit."""
        try:
            parsed = x509.load_pem_x509_certificate(certificate.encode())
        except ValueError as error:
            raise GuestError(f"the certificate cannot be read: {error}") from error
        # A late answer for an earlier move would leave QEMU with a certificate that does not fit its key.
        if move != self._move or parsed.public_key() != self._key.public_key():
            raise GuestError("the certificate is not for this pod's key")
        folder = Path(tempfile.mkdtemp(prefix="tls-", dir=self._folder))
        role = "server" if is_server else "client"
        secret = self._key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        (folder / "ca-cert.pem").write_text(authority)
        (folder / f"{role}-cert.pem").write_text(certificate)
        # Made with its mode before the secret is written, so that nobody can open it in between.
        (folder / f"{role}-key.pem").touch(mode=0o600)
        (folder / f"{role}-key.pem").write_bytes(secret)
        return folder

    @staticmethod
    def forget(place: Path) -> None:
        """QEMU has read the files."""
        shutil.rmtree(place, ignore_errors=True)
