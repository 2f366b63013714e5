"""The webhook's own certificate: from its Secret into one file, which its listener follows.

The injector makes its certificate itself, so it cannot wait for a volume that is mounted before it starts.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from scheduler_plugin.cluster.api import KubernetesApi
from scheduler_plugin.injector.certificates.secret_reading import read_secret
from scheduler_plugin.injector.certificates.stored import certificate_in, content


@dataclass(frozen=True, slots=True)
class OwnCertificate:
    """The Secret ``name`` in ``namespace``, and the file that has its certificate and key."""

    api: KubernetesApi
    namespace: str
    name: str
    file: Path

    async def fetch(self) -> None:
        """Writes what the Secret holds, where it is usable and new. Raises ``ApiError`` and ``OSError``."""
        secret = await read_secret(self.api, self.namespace, self.name)
        stored = certificate_in(content(secret or {}))
        if stored is not None:
            whole = stored.pair.certificate + stored.pair.key
            # Only if it is new: whoever follows the file reads it again after each change.
            if not self.file.exists() or self.file.read_bytes() != whole:
                _replace(self.file, whole)


def _replace(file: Path, content: bytes) -> None:
    """At once, and readable by its owner alone."""
    fresh = file.with_suffix(".new")
    # Created with these rights: a later chmod would leave a moment in which others could read the key.
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as out:
        out.write(content)
    # The listener sees the old pair or the new one, and never half of it.
    fresh.replace(file)
