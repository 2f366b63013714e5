"""Discovery of API features that not every version of Kubernetes has."""

from __future__ import annotations

from typing import Final

from protocol.kubernetes.api import ApiCall, KubernetesApi
from protocol.kubernetes.objects import items, text
from protocol.units import Seconds

_TIMEOUT: Final = Seconds(3.0)


async def offers_pod_resize(api: KubernetesApi) -> bool:
    """Return True if requests of running pods can be changed (``pods/resize``, KEP-1287). Raises ``ApiError``."""
    resources = await api.call(ApiCall("GET", "/api/v1", _TIMEOUT))
    # By the resource, not by the API server's version: a feature gate may switch it on or off.
    return any(text(resource, "name") == "pods/resize" for resource in items(resources, "resources"))
