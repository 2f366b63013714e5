"""Verification of servers: as kubectl does it, on every version of Python."""

from __future__ import annotations

import ssl
from pathlib import Path


def trusting(authorities: str | None = None, *, file: Path | str | None = None) -> ssl.SSLContext:
    """A client's context that trusts ``authorities`` (PEM), those of ``file``, or the machine's if neither is given.

    Raises ``OSError``, ``ssl.SSLError``, and ``TypeError`` if ``authorities`` is not ASCII.
    """
    return verifying_like_kubectl(ssl.create_default_context(cafile=file, cadata=authorities or None))  # noqa: TID251


def verifying_like_kubectl(context: ssl.SSLContext) -> ssl.SSLContext:
    """The same context, as strict as Go's libraries, no more and no less."""
    # Go accepts certificates without key identifiers, which older EKS clusters have and Python rejects from 3.13 on.
    # Go also trusts an intermediate authority without its root, which Python rejects before 3.13.
    context.verify_flags = (context.verify_flags & ~ssl.VERIFY_X509_STRICT) | ssl.VERIFY_X509_PARTIAL_CHAIN
    return context
