"""The expander's certificate, read again when its files change (the autoscaler insists on TLS).

Rules that hold here:

- New files are used for the next handshake. Files that cannot be used, or do not belong together, are reported and the
  old ones stay.
"""

from __future__ import annotations

import logging
import ssl
from dataclasses import dataclass
from pathlib import Path

import grpc

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """PEM files: our certificate chain and key; with ``client_ca`` only clients that it signed may call."""

    certificate: Path
    key: Path
    client_ca: Path | None = None


class TlsError(Exception):
    """The certificate files cannot be used; the message says which and why."""


class Certificates:
    """What gRPC asks at each handshake."""

    def __init__(self, files: TlsFiles) -> None:
        """Reads the files. Raises ``TlsError``."""
        self._files = files
        self._contents = self._read()

    def credentials(self) -> grpc.ServerCredentials:
        """Server credentials that follow the files."""
        return grpc.dynamic_ssl_server_credentials(
            self.current(), self.current, require_client_authentication=self._files.client_ca is not None
        )

    def current(self) -> grpc.ServerCertificateConfiguration:
        """What the files say now, or what they said when they could last be used."""
        try:
            contents = self._read()
        except TlsError as error:
            _log.error("keeping the old certificate: %s", error)
            contents = self._contents
        if contents != self._contents:
            _log.info("using the new certificate in %s", self._files.certificate)
            self._contents = contents
        certificate, key, client_ca = contents
        return grpc.ssl_server_certificate_configuration([(key, certificate)], root_certificates=client_ca)

    def _read(self) -> tuple[bytes, bytes, bytes | None]:
        files = self._files
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(files.certificate, files.key)
            if files.client_ca is None:
                return files.certificate.read_bytes(), files.key.read_bytes(), None
            ssl.create_default_context(cafile=files.client_ca)
            return files.certificate.read_bytes(), files.key.read_bytes(), files.client_ca.read_bytes()
        except OSError as error:  # ssl.SSLError is one
            raise TlsError(f"{files.certificate}, {files.key}, {files.client_ca or 'no client CA'}: {error}") from None
