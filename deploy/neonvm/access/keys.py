"""Keys and certificates of runner pods and their clients, and the messages of the introduction.

Keys are kept in memory only. The introduction gives the pod the CAs to trust, and the controller the pod's token.
"""

from __future__ import annotations

import ssl
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Final

import msgspec

from deploy.neonvm.texts import runner as texts
from protocol.runtime.certificates.issuing import CertificateForm, common_name, load_certificate, new_key

_VALIDITY: Final = datetime(2000, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, tzinfo=UTC)
"""A pod's key is trusted because of its token, so its certificate need not expire."""


class PodIdentity:
    """The TLS key of one runner pod, created when it starts, the CAs (PEM) of its clients, and the file ``token`` of
    its projected token.

    Raises ``ValueError`` if ``authorities`` is invalid.
    """

    def __init__(self, name: str, authorities: str, token: Path) -> None:
        self._own = CertificateForm(common_name(name), *_VALIDITY).self_signed(new_key())
        self._context = self._trusting(authorities)
        self._token = token

    def introduce(self, authorities: str) -> str:
        """Trust ``authorities`` in new connections and return the token. Raises ``ValueError`` and ``OSError``; then
        nothing changes.
        """
        # Read each time: the kubelet renews the token.
        token = self._token.read_text().strip()
        self._context = self._trusting(authorities)
        return token

    def context(self) -> ssl.SSLContext:
        """TLS context for the next connection. Client certificates are optional, but must be valid."""
        return self._context

    def _trusting(self, authorities: str) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.num_tickets = 0  # a resumed session does not send its certificate again
        try:
            context.load_verify_locations(cadata=authorities)
        except ssl.SSLError as error:
            raise ValueError(texts.AUTHORITIES_UNREADABLE.format(reason=error.reason)) from error
        # Optional: a kubelet's probe has no certificate.
        context.verify_mode = ssl.CERT_OPTIONAL
        load_certificate(context, self._own.certificate_pem, self._own.key_pem)
        return context


def client_context(certificate: bytes, key: bytes) -> ssl.SSLContext:
    """TLS context of a client with ``certificate``. Raises ``ssl.SSLError``."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    # Runners' certificates are self-signed: the caller compares fingerprints.
    context.verify_mode = ssl.CERT_NONE
    load_certificate(context, certificate, key)
    return context


def fingerprint(connection: ssl.SSLObject | ssl.SSLSocket) -> bytes:
    """SHA-256 fingerprint of the peer's certificate."""
    return sha256(connection.getpeercert(binary_form=True) or b"").digest()


def client_name(connection: ssl.SSLObject | None) -> str:
    """The common name of the peer's verified certificate; empty if it has none or several, or if there is none."""
    peer = connection.getpeercert() if connection is not None else None
    subject = peer.get("subject", ()) if peer else ()
    names = [pair[1] for part in subject for pair in part if pair[0] == "commonName"]
    return str(names[0]) if len(names) == 1 else ""


class Introduction(msgspec.Struct):
    """First request to a runner: the CAs (PEM) to trust from now on."""

    authorities: str


class Introduced(msgspec.Struct):
    """The response: the pod's token."""

    token: str
