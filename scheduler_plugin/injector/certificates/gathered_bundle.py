"""The CA bundle if cert-manager makes the certificates, gathered from all our Secrets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.serialization import Encoding

from protocol.kubernetes.api import KubernetesApi
from protocol.runtime.certificates.keeper import BUNDLE, content, read_secret
from protocol.runtime.clock import Clock
from protocol.units import Instant, Seconds

OVERLAP: Final = Seconds(600.0)
"""The kubelet updates files in a pod within two minutes; the rest is margin for kubelets without contact."""


@dataclass(slots=True)
class GatheredBundle:
    """``secrets`` in ``namespace`` are those of the certificates, and of the authority if there is one."""

    api: KubernetesApi
    clock: Clock
    namespace: str
    secrets: Sequence[str]
    _missed: dict[x509.Certificate, Instant] = field(default_factory=dict)
    """Authorities that are still trusted though no Secret has them, and since when."""

    async def gather(self, mounted: bytes, published: bytes) -> bytes:
        """All authorities to trust from now on, in PEM, newest first; empty if there are none.

        ``mounted`` is the ``ca.crt`` next to the webhook's own certificate. Raises ``ApiError``.
        """
        named = authorities(mounted)
        for name in self.secrets:
            secret = await read_secret(self.api, self.namespace, name)
            # An issuer with a new key uses it at each renewal, so both the old and the new authority are in use for
            # weeks.
            named |= authorities(content(secret or {}).get(BUNDLE, b""))
        # Read from the cluster each time, so that a new leader continues where the last one ended.
        trusted, now = named | self._in_overlap(authorities(published) - named), self.clock.wall()
        return in_pem({authority for authority in trusted if now < authority.not_valid_after_utc.timestamp()})

    def _in_overlap(self, missed: set[x509.Certificate]) -> set[x509.Certificate]:
        now = self.clock.now()
        self._missed = {certificate: self._missed.get(certificate, now) for certificate in missed}
        # Long enough for pods to get their new certificates; the old authority's key may be compromised.
        return {certificate for certificate, since in self._missed.items() if now - since < OVERLAP}


def authorities(pem: bytes) -> set[x509.Certificate]:
    """The certificates of a ``ca.crt``; none if unreadable."""
    try:
        return set(x509.load_pem_x509_certificates(pem))
    except ValueError:
        return set()


def in_pem(certificates: set[x509.Certificate]) -> bytes:
    """PEM text of a set, newest first."""
    # Ties by fingerprint: the same set must give the same text, or it would be rewritten every round.
    ordered = sorted(
        certificates,
        key=lambda certificate: (certificate.not_valid_before_utc, certificate.fingerprint(hashes.SHA256())),
        reverse=True,
    )
    return b"".join(certificate.public_bytes(Encoding.PEM) for certificate in ordered)
