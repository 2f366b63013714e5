"""The webhook's own certificate, copied from its Secret into a file.

The injector makes that certificate itself, so it cannot wait for a volume that is mounted before it starts.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from protocol.kubernetes.api import KubernetesApi
from protocol.runtime.certificates.keeper import certificate_in, content, read_secret


@dataclass(frozen=True, slots=True)
class OwnCertificate:
    """The Secret ``name`` in ``namespace``, and the file that the webhook's listener follows."""

    api: KubernetesApi
    namespace: str
    name: str
    file: Path

    async def fetch(self) -> None:
        """Writes the Secret's pair into the file, if it is usable and new. Raises ``ApiError`` and ``OSError``."""
        secret = await read_secret(self.api, self.namespace, self.name)
        stored = certificate_in(content(secret or {}))
        if stored is not None:
            pem = stored.pair.certificate + stored.pair.key
            # The listener reads the file again after each write.
            if not self.file.exists() or self.file.read_bytes() != pem:
                _replace(self.file, pem)


def _replace(file: Path, pem: bytes) -> None:
    """Atomically, and readable by its owner alone."""
    temporary = file.with_suffix(".new")
    # Created with this mode: before a later chmod others could read the key for a moment.
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as out:
        out.write(pem)
    # The listener sees the old pair or the new one, never half of it.
    temporary.replace(file)
