"""Server verification like kubectl's, on every version of Python."""

from __future__ import annotations

import ssl
from pathlib import Path


def trusting(authorities: str | None = None, *, file: Path | str | None = None) -> ssl.SSLContext:
    """A client's context that trusts the CAs in ``authorities`` (PEM) or ``file``, or the system's if neither is set.

    Raises ``OSError``, ``ssl.SSLError``, and ``TypeError`` if ``authorities`` is not ASCII.
    """
    return verifying_like_kubectl(ssl.create_default_context(cafile=file, cadata=authorities or None))  # noqa: TID251


def verifying_like_kubectl(context: ssl.SSLContext) -> ssl.SSLContext:
    """Make ``context`` exactly as strict as Go's libraries, and return it."""
    # Go accepts certificates without key identifiers, which older EKS clusters have and Python rejects since 3.13. Go
    # also trusts an intermediate CA without its root, which Python rejects before 3.13.
    context.verify_flags = (context.verify_flags & ~ssl.VERIFY_X509_STRICT) | ssl.VERIFY_X509_PARTIAL_CHAIN
    return context
