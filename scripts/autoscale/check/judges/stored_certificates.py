"""Certificates in our Secrets, decoded (pure)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from cryptography import x509

from protocol.kubernetes.objects import name_of, texts
from protocol.runtime.certificates.keeper import decoded
from scripts.autoscale.check.facts import CheckFacts

SECRETS: Final = "autoscaling-certificates"
"""Prefix of our Secrets with certificates; the one of exactly this name contains only CAs."""

EXPANDER_AUTHORITY: Final = "autoscaling-expander-ca"
OF_THE_EXPANDER: Final = (EXPANDER_AUTHORITY, "autoscaling-expander-tls")
"""Secrets of the expander that cert-manager fills if nothing else issues its certificate; they have their own CA."""

RUNNERS: Final = "neonvm-runners"
"""Prefix of the Secrets of runner pods, whose certificates neonvm-controller's own CA signs."""

_SUFFIXES: Final = (".crt", ".pem")


@dataclass(frozen=True, slots=True)
class StoredCertificates:
    """The certificates in a key of a Secret: a chain starting with the leaf, or CAs in any order."""

    secret: str
    key: str
    chain: tuple[x509.Certificate, ...]

    @property
    def is_authority(self) -> bool:
        """True if these are CAs."""
        return self.secret in (SECRETS, EXPANDER_AUTHORITY, RUNNERS) or self.key.startswith("ca")

    @property
    def is_of_runners(self) -> bool:
        """True if the CA of runner pods signs these; it signs nothing else."""
        return self.secret.startswith(RUNNERS)

    @property
    def decisive(self) -> x509.Certificate:
        """The certificate whose age matters: the leaf, or the newest CA."""
        # The newest CA signs; older ones stay until none of their leaf certificates is left.
        return (
            max(self.chain, key=lambda certificate: certificate.not_valid_after_utc)
            if self.is_authority
            else self.chain[0]
        )

    def __str__(self) -> str:
        return f"{self.key} of the Secret {self.secret}"


def read_certificates(facts: CheckFacts) -> list[StoredCertificates]:
    """Decodes the certificates in our Secrets. Raises ``UnavailableError``."""
    return [
        StoredCertificates(name_of(secret).name, key, tuple(certificates(decoded(value))))
        for secret in facts.secrets.value
        for key, value in texts(secret, "data").items()
        if key.endswith(_SUFFIXES)
    ]


def has_certificates(secret: str) -> bool:
    """Return True if a Secret of that name is one of ours with certificates."""
    return secret.startswith((SECRETS, RUNNERS)) or secret in OF_THE_EXPANDER


def certificates(pem: bytes) -> list[x509.Certificate]:
    """Parses the certificates of a PEM text; empty if there are none."""
    try:
        return x509.load_pem_x509_certificates(pem)
    except ValueError:
        return []
