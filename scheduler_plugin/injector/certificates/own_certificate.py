"""The webhook's own certificate, copied from its Secret into a file.

The injector issues it itself, so it cannot wait for a volume that is mounted before its start.
"""

from __future__ import annotations

import os
from pathlib import Path

from protocol.kubernetes.api import KubernetesApi
from protocol.runtime.certificates.keeper import certificate_in, content, read_secret


async def fetch_certificate(api: KubernetesApi, namespace: str, name: str, file: Path) -> None:
    """Write the pair in the Secret ``name`` to the file that the webhook's listener follows, if it is usable and new.
    Raises ``ApiError`` and ``OSError``.
    """
    stored = certificate_in(content(await read_secret(api, namespace, name) or {}))
    if stored is not None:
        _replace(file, stored.pair.certificate + stored.pair.key)


def _replace(file: Path, pem: bytes) -> None:
    """Replace the file atomically, with permissions for its owner only."""
    # The listener reloads the file after each write.
    if file.exists() and file.read_bytes() == pem:
        return
    temporary = file.with_suffix(".new")
    # Created with this mode: a later chmod would leave a moment in which others can read the key.
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as out:
        out.write(pem)
    # The listener must not see a partial file.
    temporary.replace(file)
