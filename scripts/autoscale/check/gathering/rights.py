"""What the person who asks and the programs' accounts may do: asked of the API server, right by right."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Final

from deploy.kube.client import ApiClient
from protocol.kubernetes.objects import Json, flag
from protocol.kubernetes.resources import Resource
from scripts.autoscale.check.facts import Right
from scripts.autoscale.check.gathering.looking import looked
from scripts.autoscale.check.looks import Look, SiteObservations, Unseen

_GROUP: Final = "authorization.k8s.io"
OWN: Final = Resource(_GROUP, "v1", "selfsubjectaccessreviews", "SelfSubjectAccessReview", namespaced=False)
OF_OTHERS: Final = Resource(_GROUP, "v1", "subjectaccessreviews", "SubjectAccessReview", namespaced=False)
_AT_ONCE: Final = 16


async def own_rights(client: ApiClient, rights: Iterable[Right]) -> Look[Mapping[Right, bool]]:
    """Rights that the person who asks has."""
    return await _asked(client, OWN, rights, {}, "ask what you may do")


async def account_rights(
    client: ApiClient, wanted: Mapping[str, Iterable[Right]]
) -> Look[Mapping[str, Mapping[Right, bool]]]:
    """Rights that each service account (``namespace:name``) has."""
    found = dict[str, Mapping[Right, bool]]()
    for account, rights in wanted.items():
        namespace = account.partition(":")[0]
        groups = ["system:serviceaccounts", f"system:serviceaccounts:{namespace}", "system:authenticated"]
        who: Json = {"user": f"system:serviceaccount:{account}", "groups": groups}
        look = await _asked(client, OF_OTHERS, rights, who, "create subjectaccessreviews.authorization.k8s.io")
        if isinstance(look, Unseen):
            return look
        found[account] = look.value
    return SiteObservations(found)


async def _asked(
    client: ApiClient, review: Resource, rights: Iterable[Right], who: Json, what: str
) -> Look[Mapping[Right, bool]]:
    limit = asyncio.Semaphore(_AT_ONCE)

    async def one(right: Right) -> bool:
        async with limit:
            spec: Json = {**who, "resourceAttributes": _attributes(right)}
            body: Json = {"apiVersion": review.api_version, "kind": review.kind, "spec": spec}
            return flag(await client.create(review, "", body), "status", "allowed")

    async def every() -> Mapping[Right, bool]:
        asked = sorted(rights)
        return dict(zip(asked, await asyncio.gather(*map(one, asked)), strict=True))

    return await looked(every(), what)


def _attributes(right: Right) -> Json:
    resource, _, subresource = right.resource.partition("/")
    found: Json = {"verb": right.verb, "group": right.group, "resource": resource}
    given = {"subresource": subresource, "namespace": right.namespace, "name": right.name}
    return found | {key: value for key, value in given.items() if value}
