"""Projected service-account tokens: asked of the API server for one pod, written to a file, renewed in time (B.4)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from deploy.kube.client import ApiClient
from deploy.local.private_file import write_private
from protocol.kubernetes.api import ApiError, ApiRefusedError
from protocol.kubernetes.objects import Json, name_of, text, uid_of
from protocol.kubernetes.refusals import RefusalKind
from protocol.kubernetes.resources import SERVICE_ACCOUNTS
from protocol.messages import ObjectName
from protocol.runtime.clock import Clock
from protocol.units import Seconds

# Seconds. An hour is a projected token's default in Kubernetes, too.
_LIFETIME: Final = 3600
# A kubelet renews at four fifths of the lifetime as well.
_RENEW: Final = Seconds(_LIFETIME * 0.8)
_RETRY: Final = Seconds(2.0)


@dataclass(frozen=True, slots=True)
class Projection:
    """One token file of ``pod``: for ``audience``, or for the API server itself if that is empty."""

    pod: Json
    audience: str
    file: Path

    @property
    def account(self) -> ObjectName:
        """The service account that the pod runs as."""
        return ObjectName(name_of(self.pod).namespace, text(self.pod, "spec", "serviceAccountName") or "default")


async def project(client: ApiClient, projection: Projection) -> None:
    """Writes a fresh token. Raises ``ApiError`` or ``OSError``."""
    pod = projection.pod
    reference: Json = {"apiVersion": "v1", "kind": "Pod", "name": name_of(pod).name, "uid": uid_of(pod)}
    # The binding makes the token invalid as soon as this very pod is deleted.
    spec: Json = {"expirationSeconds": _LIFETIME, "boundObjectRef": reference}
    # Without audiences the API server issues the token for itself.
    if projection.audience:
        spec["audiences"] = [projection.audience]
    request: Json = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
    await ensure_account(client, projection.account)
    answer = await client.post_subresource(SERVICE_ACCOUNTS, projection.account, "token", request)
    write_private(projection.file, text(answer, "status", "token"))


async def keep_projected(client: ApiClient, projection: Projection, clock: Clock) -> None:
    """Keeps renewing the token, at four fifths of its life; failures (no API server, full disk) are soon retried."""
    delay = _RENEW
    while True:
        await clock.sleep(delay)
        try:
            await project(client, projection)
            delay = _RENEW
        except (ApiError, OSError):
            delay = _RETRY


async def ensure_account(client: ApiClient, account: ObjectName) -> None:
    """Makes the service account if it is missing, as a cluster does for ``default``."""
    body: Json = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": account.name}}
    try:
        await client.create(SERVICE_ACCOUNTS, account.namespace, body)
    except ApiRefusedError as error:
        # Usually it exists already, or another pod's projection creates it at the same time.
        if error.kind is not RefusalKind.ALREADY_EXISTS:
            raise
