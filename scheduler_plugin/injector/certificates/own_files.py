"""The webhook's own certificate: from its Secret into one file, which its listener follows.

The injector makes its certificate itself, so it cannot wait for a volume that is mounted before it starts.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from protocol.kubernetes.refusals import RefusalKind
from protocol.kubernetes.resources import SECRETS
from protocol.units import Seconds
from scheduler_plugin.cluster.api import ApiCall, ApiRefusedError, KubernetesApi
from scheduler_plugin.injector.certificates.stored import certificate_in, content

TIMEOUT: Final = Seconds(3.0)


@dataclass(frozen=True, slots=True)
class OwnCertificate:
    """The Secret ``name`` in ``namespace``, and the file that has its certificate and key."""

    api: KubernetesApi
    namespace: str
    name: str
    file: Path

    async def fetch(self) -> None:
        """Writes what the Secret holds, where it is usable and new. Raises ``ApiError`` and ``OSError``."""
        try:
            secret = await self.api.call(ApiCall("GET", SECRETS.path(self.namespace, self.name), TIMEOUT))
        except ApiRefusedError as error:
            if error.kind is RefusalKind.NOT_FOUND:
                return
            raise
        found = certificate_in(content(secret))
        if found is not None:
            whole = found.pair.certificate + found.pair.key
            if not self.file.exists() or self.file.read_bytes() != whole:
                _replace(self.file, whole)


def _replace(file: Path, content: bytes) -> None:
    """At once, and readable by its owner alone."""
    fresh = file.with_suffix(".new")
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as out:
        out.write(content)
    fresh.replace(file)
