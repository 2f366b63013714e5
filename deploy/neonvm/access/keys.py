"""Keys and certificates of both ends of a connection to a runner pod, and their introduction.

Keys are held in memory. The introduction tells a pod whom to let in, and its controller which pod it is.
"""

from __future__ import annotations

import ssl
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Final

import msgspec

from deploy.neonvm.texts import runner as texts
from protocol.runtime.certificates.issuing import CertificateForm, common_name, new_key, show

_ALWAYS: Final = datetime(2000, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, tzinfo=UTC)
"""A pod's own key is trusted because of its token, so its certificate need not expire."""


class RunnerKey:
    """The key of one runner pod, made when it starts, and the authorities whose clients it lets in. ``authorities`` in
    PEM. Raises ``ValueError`` if they cannot be used.
    """

    def __init__(self, name: str, authorities: str) -> None:
        self._own = CertificateForm(common_name(name), *_ALWAYS).self_signed(new_key())
        self._context = self._trusting(authorities)

    def trust(self, authorities: str) -> None:
        """Trusts these authorities, and no others, from the next connection on. Raises ``ValueError``."""
        self._context = self._trusting(authorities)

    def context(self) -> ssl.SSLContext:
        """For the next connection. A client may show a certificate; one that no authority signed is refused."""
        return self._context

    def _trusting(self, authorities: str) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.num_tickets = 0  # a resumed session would not show its certificate again
        try:
            context.load_verify_locations(cadata=authorities)
        except ssl.SSLError as error:
            raise ValueError(texts.AUTHORITIES_UNREADABLE.format(reason=error.reason)) from error
        # A probe has no certificate. One that is shown must be signed by an authority.
        context.verify_mode = ssl.CERT_OPTIONAL
        show(context, self._own.certificate_pem, self._own.key_pem)
        return context


def client_context(certificate: bytes, key: bytes) -> ssl.SSLContext:
    """A client that shows ``certificate``; ``fingerprint`` says whom it speaks to. Raises ``ssl.SSLError``."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    # No authority signs runners' certificates: the caller compares the key's fingerprint instead.
    context.verify_mode = ssl.CERT_NONE
    show(context, certificate, key)
    return context


def fingerprint(connection: ssl.SSLObject | ssl.SSLSocket) -> bytes:
    """Fingerprint of the peer's certificate, whose key it has proven to hold."""
    return sha256(connection.getpeercert(binary_form=True) or b"").digest()


def client_name(connection: ssl.SSLObject | None) -> str:
    """The only common name of the verified certificate of the other end; empty if there is none."""
    peer = connection.getpeercert() if connection is not None else None
    subject = peer.get("subject", ()) if peer else ()
    names = [pair[1] for part in subject for pair in part if pair[0] == "commonName"]
    # With two names it is unclear which one is the caller's.
    return str(names[0]) if len(names) == 1 else ""


class Introduction(msgspec.Struct):
    """First message to a runner: the authorities, in PEM, whose clients it admits from now on."""

    authorities: str


class Introduced(msgspec.Struct):
    """Its answer: the token of its pod."""

    token: str


class PodIdentity:
    """The runner's side. ``token`` is a file that the kubelet keeps: a token of this pod for ``RUNNER_AUDIENCE``."""

    def __init__(self, key: RunnerKey, token: Path) -> None:
        self._key = key
        self._token = token

    def introduce(self, authorities: str) -> str:
        """Trusts ``authorities`` and returns the token. Raises ``ValueError`` and ``OSError``, and trusts as before."""
        # Read each time, because the kubelet replaces the token before it expires.
        token = self._token.read_text().strip()
        # After the token: if it cannot be read, the runner trusts as before.
        self._key.trust(authorities)
        return token
