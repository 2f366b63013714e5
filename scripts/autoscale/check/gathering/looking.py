"""One call on the API as a look: refusals become reasons."""

from __future__ import annotations

import ssl
from collections.abc import Awaitable, Sequence
from typing import Final, TypeVar

import httpx2 as httpx

from deploy.kube.client import ApiClient, ApiUnavailableError, KubeApiError
from protocol.kubernetes.objects import Json
from protocol.kubernetes.refusals import RefusalKind
from protocol.kubernetes.resources import Resource
from scripts.autoscale.check.looks import Look, SiteObservations, Unseen

_UNTRUSTED: Final = "CERTIFICATE_VERIFY_FAILED"

T = TypeVar("T")


async def looked(asked: Awaitable[T], what: str) -> Look[T]:
    """Result of a look; ``what`` is the right it needs, such as ``list nodes``."""
    try:
        return SiteObservations(await asked)
    except KubeApiError as error:
        if error.kind is RefusalKind.FORBIDDEN:
            return Unseen(f"you may not {what}")
        if error.kind is RefusalKind.NOT_FOUND:
            return Unseen(f"the cluster has nothing to {what}")
        return Unseen(f"{what}: {error}", has_failed=True)
    except ApiUnavailableError as error:
        return Unseen(f"{what}: {why_not(error)}", has_failed=True)


async def objects(
    client: ApiClient, kind: Resource, namespace: str = "", *, labels: str = "", fields: str = ""
) -> Look[Sequence[Json]]:
    """All objects of a kind, as far as they can be read."""

    async def asked() -> Sequence[Json]:
        return (await client.list(kind, namespace, labels, fields)).objects

    return await looked(asked(), f"list {kind.plural}" + (f" in {namespace}" if namespace else ""))


def why_not(error: Exception) -> str:
    """The reason for an unusable answer, in words."""
    chain = list(_causes(error))
    if any(isinstance(each, ssl.SSLCertVerificationError) or _UNTRUSTED in str(each) for each in chain):
        return f"its certificate is not trusted by the kubeconfig ({_last(chain)})"
    if any(isinstance(each, httpx.TimeoutException) for each in chain):
        return "it does not answer in time"
    if any(isinstance(each, httpx.ConnectError) for each in chain):
        return f"it cannot be reached ({_last(chain)})"
    return str(error)


def _causes(error: BaseException | None) -> list[BaseException]:
    found = list[BaseException]()
    while error is not None and error not in found:
        found.append(error)
        error = error.__cause__ or error.__context__
    return found


def _last(chain: Sequence[BaseException]) -> str:
    said = [str(each).strip() for each in chain if str(each).strip()]
    return said[-1] if said else type(chain[-1]).__name__
