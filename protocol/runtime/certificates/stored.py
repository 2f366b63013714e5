"""Certificates as Secrets hold them. Nothing here logs or raises any content of a Secret.

- The Secret of the authorities has ``SERIAL.crt`` and ``SERIAL.key`` of each; no pod mounts it.
- The Secret of a certificate has the keys that cert-manager writes: ``tls.crt``, ``tls.key``, and in ``ca.crt`` the
  bundle of all authorities that are trusted, the newest first.
"""

from __future__ import annotations

import base64
from binascii import Error
from collections.abc import Iterable
from typing import Final

from protocol.kubernetes.api import ApiCall, ApiRefusedError, KubernetesApi
from protocol.kubernetes.objects import Json, JsonObject, texts
from protocol.kubernetes.refusals import RefusalKind
from protocol.kubernetes.resources import SECRETS
from protocol.runtime.certificates.issuing import Issued, Pair, UnusablePairError, read_pair
from protocol.units import Seconds

CERTIFICATE: Final = "tls.crt"
KEY: Final = "tls.key"
BUNDLE: Final = "ca.crt"

_TIMEOUT: Final = Seconds(3.0)


def content(secret: JsonObject) -> dict[str, bytes]:
    """Content of a Secret; a value that is not base64 counts as empty."""
    return {key: decoded(value) for key, value in texts(secret, "data").items()}


def encoded(data: dict[str, bytes]) -> Json:
    """The data of a Secret with this content."""
    return {key: base64.b64encode(value).decode() for key, value in data.items()}


def authorities_in(data: dict[str, bytes]) -> list[Issued]:
    """The usable authorities in a Secret, the newest first."""
    usable_pairs = [
        issued
        for key, certificate in data.items()
        if key.endswith(".crt") and (issued := usable(Pair(certificate, data.get(f"{key[:-4]}.key", b""))))
    ]
    # The serial number breaks ties, so that the order never changes between two turns.
    return sorted(usable_pairs, key=lambda authority: (authority.life.made, authority.serial), reverse=True)


def authorities_as(authorities: Iterable[Issued]) -> dict[str, bytes]:
    """Authorities as the content of a Secret."""
    data: dict[str, bytes] = {}
    for authority in authorities:
        # Serial numbers are unique, and show which files form a pair.
        data |= {f"{authority.serial}.crt": authority.pair.certificate, f"{authority.serial}.key": authority.pair.key}
    return data


def certificate_in(data: dict[str, bytes]) -> Issued | None:
    """The certificate of a Secret; None if it holds none that can be used."""
    return usable(Pair(data.get(CERTIFICATE, b""), data.get(KEY, b"")))


def usable(pair: Pair) -> Issued | None:
    """The pair, decoded; None if it cannot be used."""
    try:
        return read_pair(pair)
    except UnusablePairError:
        return None


def decoded(value: str) -> bytes:
    """Decoded base64 value; empty if it is not base64."""
    try:
        return base64.b64decode(value, validate=True)
    except (Error, ValueError):
        return b""


async def read_secret(api: KubernetesApi, namespace: str, name: str) -> JsonObject | None:
    """The Secret; None if there is none. Raises ``ApiError``."""
    try:
        return await api.call(ApiCall("GET", SECRETS.path(namespace, name), _TIMEOUT))
    except ApiRefusedError as error:
        # Programs that are not installed have no Secret.
        if error.kind is RefusalKind.NOT_FOUND:
            return None
        raise
