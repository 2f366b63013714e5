"""Whether the API server would admit the pods of our programs: each is sent as a dry run."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Final

from deploy.kube.client import ApiClient, ApiError, ApiUnavailableError
from protocol.kubernetes.objects import Json, child, name_of
from protocol.kubernetes.refusals import RefusalKind
from protocol.kubernetes.resources import PODS
from scripts.autoscale.check.gathering.looking import why_not
from scripts.autoscale.check.looks import Look, Seen, Unseen

_BY_RIGHTS: Final = "cannot create resource"
_NO_DRY_RUN: Final = "dry run"


async def admission(
    client: ApiClient, namespace: str, workloads: Iterable[Json], *, is_installed: bool
) -> dict[str, Look[str]]:
    """By program: why a pod of it is refused, or nothing where it is not."""
    found = {name_of(each).name: pod_of(each, is_installed=is_installed) for each in workloads}
    looks = await asyncio.gather(*(_tried(client, namespace, pod) for pod in found.values()))
    return dict(zip(found, looks, strict=True))


def pod_of(workload: Json, *, is_installed: bool) -> Json:
    """A pod as the workload's template makes it. Before an installation its service account is not there yet (pure)."""
    template = child(workload, "spec", "template")
    metadata = {**child(template, "metadata"), "generateName": "autoscale-check-"}
    spec = child(template, "spec")
    if not is_installed:
        spec = {**spec, "serviceAccountName": "default"}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


async def _tried(client: ApiClient, namespace: str, pod: Json) -> Look[str]:
    try:
        await client.try_create(PODS, namespace, pod)
    except ApiError as error:
        said = error.refusal.message
        if error.kind is RefusalKind.FORBIDDEN and _BY_RIGHTS in said:
            return Unseen(f"you may not create pods in {namespace}, not even as a dry run")
        if error.kind is RefusalKind.NOT_FOUND:
            return Unseen(f"there is no namespace {namespace}")
        if _NO_DRY_RUN in said:
            return Unseen(f"a webhook takes no dry runs: {said}")
        return Seen(said.partition(" is forbidden: ")[2] or said)
    except ApiUnavailableError as error:
        return Unseen(f"create pods in {namespace} as a dry run: {why_not(error)}", has_failed=True)
    return Seen("")
