"""What is trusted where another makes the certificates (cert-manager): gathered from all Secrets of ours.

Rules that hold here:

- Each Secret brings the authorities of its ``ca.crt``. When an issuer has a new key, it signs with it what is due, one
  certificate after the other: for weeks some are of the old authority and some of the new, and all of them are trusted.
- What no Secret names any more is trusted for ``OVERLAP``, in which kubelets bring pods their new certificates, and no
  longer: it may be an authority whose key is known to others.
- What was published is read from the cluster each time: a new leader goes on where the last one ended.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.serialization import Encoding

from protocol.runtime.clock import Clock
from protocol.units import Instant, Seconds
from scheduler_plugin.cluster.api import KubernetesApi
from scheduler_plugin.injector.certificates.secret_reading import read_secret
from scheduler_plugin.injector.certificates.stored import BUNDLE, content

OVERLAP: Final = Seconds(600.0)
"""A kubelet brings a pod its new files within two minutes, and one that is away comes back within some more."""


@dataclass(slots=True)
class GatheredBundle:
    """``secrets`` in ``namespace`` are those of the certificates, and that of the authority if there is one."""

    api: KubernetesApi
    clock: Clock
    namespace: str
    secrets: Sequence[str]
    _missed: dict[x509.Certificate, Instant] = field(default_factory=dict)
    """Since when no Secret names what is still trusted."""

    async def gather(self, mounted: bytes, published: bytes) -> bytes:
        """All authorities that are to be trusted from now on, in PEM, the newest first; empty if there are none.

        ``mounted`` is the ``ca.crt`` beside the webhook's own certificate. Raises ``ApiError``.
        """
        named = authorities(mounted)
        for name in self.secrets:
            secret = await read_secret(self.api, self.namespace, name)
            named |= authorities(content(secret or {}).get(BUNDLE, b""))
        return in_pem(self._valid(named | self._lingering(authorities(published) - named)))

    def _lingering(self, missed: set[x509.Certificate]) -> set[x509.Certificate]:
        now = self.clock.now()
        self._missed = {each: self._missed.get(each, now) for each in missed}
        return {each for each, since in self._missed.items() if now - since < OVERLAP}

    def _valid(self, found: set[x509.Certificate]) -> set[x509.Certificate]:
        now = self.clock.wall()
        return {each for each in found if now < each.not_valid_after_utc.timestamp()}


def authorities(pem: bytes) -> set[x509.Certificate]:
    """The certificates of a ``ca.crt``; none if it cannot be read."""
    try:
        return set(x509.load_pem_x509_certificates(pem))
    except ValueError:
        return set()


def in_pem(found: set[x509.Certificate]) -> bytes:
    """One text for one set, the newest first."""
    ordered = sorted(
        found, key=lambda each: (each.not_valid_before_utc, each.fingerprint(hashes.SHA256())), reverse=True
    )
    return b"".join(each.public_bytes(Encoding.PEM) for each in ordered)
