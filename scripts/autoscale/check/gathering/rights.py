"""Rights of the person who asks and of the programs' accounts: the API server is asked about each."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Final

from deploy.kube.client import ApiClient
from protocol.kubernetes.objects import Json, flag
from protocol.kubernetes.resources import Resource
from scripts.autoscale.check.facts import Look, Right, SiteObservations, Unseen
from scripts.autoscale.check.gathering.looking import looked

_GROUP: Final = "authorization.k8s.io"
OWN: Final = Resource(_GROUP, "v1", "selfsubjectaccessreviews", "SelfSubjectAccessReview", namespaced=False)
OF_OTHERS: Final = Resource(_GROUP, "v1", "subjectaccessreviews", "SubjectAccessReview", namespaced=False)
_AT_ONCE: Final = 16


async def own_rights(client: ApiClient, rights: Iterable[Right]) -> Look[Mapping[Right, bool]]:
    """Rights that the person who asks has."""
    return await _asked(client, OWN, rights, {}, "create selfsubjectaccessreviews.authorization.k8s.io")


async def account_rights(
    client: ApiClient, wanted: Mapping[str, Iterable[Right]]
) -> Look[Mapping[str, Mapping[Right, bool]]]:
    """Rights that each service account (``namespace:name``) has."""
    granted = dict[str, Mapping[Right, bool]]()
    for account, rights in wanted.items():
        namespace = account.partition(":")[0]
        # Rights can be granted to these groups, and the API server adds none of them to a review by itself.
        groups = ["system:serviceaccounts", f"system:serviceaccounts:{namespace}", "system:authenticated"]
        who: Json = {"user": f"system:serviceaccount:{account}", "groups": groups}
        look = await _asked(client, OF_OTHERS, rights, who, "create subjectaccessreviews.authorization.k8s.io")
        if isinstance(look, Unseen):
            # One refused review means that all others would be refused as well.
            return look
        granted[account] = look.value
    return SiteObservations(granted)


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
        ordered = sorted(rights)
        return dict(zip(ordered, await asyncio.gather(*map(one, ordered)), strict=True))

    return await looked(every(), what)


def _attributes(right: Right) -> Json:
    resource, _, subresource = right.resource.partition("/")
    attributes: Json = {"verb": right.verb, "group": right.group, "resource": resource}
    optional = {"subresource": subresource, "namespace": right.namespace, "name": right.name}
    return attributes | {key: value for key, value in optional.items() if value}
