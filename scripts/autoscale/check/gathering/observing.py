"""Turns requests to the API server into observations: errors become reasons."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import TypeVar

from deploy.kube.client import ApiClient
from protocol.kubernetes.api import ApiRefusedError, ApiUnknownError
from protocol.kubernetes.objects import Json
from protocol.kubernetes.pages import UnreadableAnswerError, read_object
from protocol.kubernetes.refusals import RefusalKind
from protocol.kubernetes.resources import Resource
from scripts.autoscale.check.facts import Observation, Observed, Unavailable
from scripts.autoscale.terminal.api_failures import failure_reason

T = TypeVar("T")


async def observe(request: Awaitable[T], what: str) -> Observation[T]:
    """Awaits a request; ``what`` is the permission that it needs, such as ``list nodes``."""
    try:
        return Observed(await request)
    except ApiRefusedError as error:
        if error.kind is RefusalKind.FORBIDDEN:
            return Unavailable(f"you cannot {what}")
        # A list of a kind whose CRD is not installed gives 404.
        if error.kind is RefusalKind.NOT_FOUND:
            return Unavailable(f"cannot {what}: not found (404)")
        return Unavailable(f"{what}: {error}", has_failed=True)
    except ApiUnknownError as error:
        return Unavailable(f"{what}: {failure_reason(error)}", has_failed=True)


async def objects(
    client: ApiClient, kind: Resource, namespace: str = "", *, labels: str = "", fields: str = ""
) -> Observation[Sequence[Json]]:
    """Lists objects of a kind."""

    async def listed() -> Sequence[Json]:
        return (await client.list(kind, namespace, labels, fields)).objects

    return await observe(listed(), f"list {kind.plural}" + (f" in {namespace}" if namespace else ""))


def read_json(body: bytes, path: str) -> Json:
    """Decodes the response from ``path``. Raises ``ApiUnknownError``."""
    try:
        return read_object(body)
    except UnreadableAnswerError as error:
        raise ApiUnknownError(f"GET {path}: {error}") from error
