"""The introduction of a runner pod and its controller: whom the pod lets in, and which pod it is."""

from __future__ import annotations

from pathlib import Path

import msgspec

from deploy.neonvm.access.keys import RunnerKey


class Introduction(msgspec.Struct):
    """First message to a runner: the authorities, in PEM, whose clients it admits from now on."""

    authorities: str


class Introduced(msgspec.Struct):
    """Its answer: the token of its pod."""

    token: str


class PodIdentity:
    """The runner's side. ``token`` is a file that the kubelet keeps: a token of this pod for ``RUNNER_AUDIENCE``."""

    def __init__(self, key: RunnerKey, token: Path) -> None:
        self._key = key
        self._token = token

    def introduce(self, authorities: str) -> str:
        """Trusts ``authorities`` and returns the token. Raises ``ValueError`` and ``OSError``, and trusts as before."""
        # Read each time, because the kubelet replaces the token before it expires.
        token = self._token.read_text().strip()
        # After the token: if it cannot be read, the runner trusts as before.
        self._key.trust(authorities)
        return token
