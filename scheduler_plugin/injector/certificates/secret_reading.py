"""Reads a Secret of ours by its name; the installation may lack it."""

from __future__ import annotations

from typing import Final

from protocol.kubernetes.api import ApiCall, ApiRefusedError, KubernetesApi
from protocol.kubernetes.objects import JsonObject
from protocol.kubernetes.refusals import RefusalKind
from protocol.kubernetes.resources import SECRETS
from protocol.units import Seconds

TIMEOUT: Final = Seconds(3.0)


async def read_secret(api: KubernetesApi, namespace: str, name: str) -> JsonObject | None:
    """The Secret; None if there is none. Raises ``ApiError``."""
    try:
        return await api.call(ApiCall("GET", SECRETS.path(namespace, name), TIMEOUT))
    except ApiRefusedError as error:
        # Programs that are not installed have no Secret.
        if error.kind is RefusalKind.NOT_FOUND:
            return None
        raise
