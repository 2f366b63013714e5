"""The pod's TLS key for each migration of its guest, and QEMU's credential files."""

from __future__ import annotations

import ssl
import tempfile
from pathlib import Path

from cryptography import x509

from deploy.neonvm.ports import GuestError
from deploy.neonvm.texts import runner as texts
from protocol.runtime.certificates.issuing import load_certificate, new_key, private_pem, signing_request


class TlsIdentity:
    """Keys and signing requests of one pod, one per migration. ``folder`` has the files while QEMU reads them. The key
    never leaves the pod.
    """

    def __init__(self, name: str, folder: Path) -> None:
        self._name = name
        self._folder = folder
        self._key = new_key()
        self._migration = ""

    def request(self, migration: str) -> str:
        """A certificate signing request for ``migration``, PEM, with a new key for each migration."""
        if migration != self._migration:
            # A repeated request keeps the key, so that a certificate in flight still matches.
            self._key, self._migration = new_key(), migration
        return signing_request(self._name, self._key).decode()

    def files(self, migration: str, certificate: str, authority: str, *, is_server: bool) -> Path:
        """A new folder for QEMU's ``tls-creds-x509``, to be deleted once QEMU has read it. Raises ``GuestError`` if the
        certificate does not match the key.
        """
        try:
            parsed = x509.load_pem_x509_certificate(certificate.encode())
        except ValueError as error:
            raise GuestError(texts.CERTIFICATE_UNREADABLE.format(error=error)) from error
        # A late certificate of an earlier migration does not match the key.
        if migration != self._migration or parsed.public_key() != self._key.public_key():
            raise GuestError(texts.OTHER_KEY)
        folder = Path(tempfile.mkdtemp(prefix="tls-", dir=self._folder))
        role = "server" if is_server else "client"
        (folder / "ca-cert.pem").write_text(authority)
        (folder / f"{role}-cert.pem").write_text(certificate)
        # Set the mode before the key is written, so that no other user can read it.
        (folder / f"{role}-key.pem").touch(mode=0o600)
        (folder / f"{role}-key.pem").write_bytes(private_pem(self._key))
        return folder

    def context(self, certificate: str, authority: str, *, is_server: bool) -> ssl.SSLContext:
        """TLS between two runners with the ``certificate`` of a migration. Raises ``ssl.SSLError`` if it does not match
        the key.
        """
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if is_server else ssl.PROTOCOL_TLS_CLIENT)
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(cadata=authority)
        load_certificate(context, certificate.encode(), private_pem(self._key))
        return context
