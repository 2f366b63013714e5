"""The webhook's own certificate, copied from its Secret into a file.

The injector makes that certificate itself, so it cannot wait for a volume that is mounted before it starts.
"""

from __future__ import annotations

import os
from pathlib import Path

from protocol.kubernetes.api import KubernetesApi
from protocol.runtime.certificates.keeper import certificate_in, content, read_secret


async def fetch_certificate(api: KubernetesApi, namespace: str, name: str, file: Path) -> None:
    """Writes the pair in the Secret ``name`` into the file that the webhook's listener follows, if it is usable and
    new. Raises ``ApiError`` and ``OSError``.
    """
    stored = certificate_in(content(await read_secret(api, namespace, name) or {}))
    if stored is not None:
        _replace(file, stored.pair.certificate + stored.pair.key)


def _replace(file: Path, pem: bytes) -> None:
    """Atomically, and readable by its owner alone."""
    # The listener reads the file again after each write.
    if file.exists() and file.read_bytes() == pem:
        return
    temporary = file.with_suffix(".new")
    # Created with this mode: before a later chmod others could read the key for a moment.
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as out:
        out.write(pem)
    # The listener sees the old pair or the new one, never half of it.
    temporary.replace(file)
