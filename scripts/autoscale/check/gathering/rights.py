"""Access reviews of the user's rights and of the service accounts' rights."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Final

from deploy.kube.client import ApiClient
from protocol.kubernetes.objects import Json, flag
from protocol.kubernetes.resources import Resource
from scripts.autoscale.check.facts import Observation, Observed, Right, Unavailable
from scripts.autoscale.check.gathering.observing import observe

_GROUP: Final = "authorization.k8s.io"
OWN: Final = Resource(_GROUP, "v1", "selfsubjectaccessreviews", "SelfSubjectAccessReview", namespaced=False)
OF_OTHERS: Final = Resource(_GROUP, "v1", "subjectaccessreviews", "SubjectAccessReview", namespaced=False)
_AT_ONCE: Final = 16


async def own_rights(client: ApiClient, rights: Iterable[Right]) -> Observation[Mapping[Right, bool]]:
    """Reviews which of ``rights`` the user has."""
    return await _review(client, OWN, rights, {}, "create selfsubjectaccessreviews.authorization.k8s.io")


async def account_rights(
    client: ApiClient, needed: Mapping[str, Iterable[Right]]
) -> Observation[Mapping[str, Mapping[Right, bool]]]:
    """Reviews which of ``needed`` each service account (``namespace:name``) has."""
    granted = dict[str, Mapping[Right, bool]]()
    for account, rights in needed.items():
        namespace = account.partition(":")[0]
        # The API server does not add these groups to a review, although rights can be granted to them.
        groups = ["system:serviceaccounts", f"system:serviceaccounts:{namespace}", "system:authenticated"]
        who: Json = {"user": f"system:serviceaccount:{account}", "groups": groups}
        observation = await _review(client, OF_OTHERS, rights, who, "create subjectaccessreviews.authorization.k8s.io")
        if isinstance(observation, Unavailable):
            # The other reviews would be refused as well.
            return observation
        granted[account] = observation.value
    return Observed(granted)


async def _review(
    client: ApiClient, review: Resource, rights: Iterable[Right], who: Json, what: str
) -> Observation[Mapping[Right, bool]]:
    limit = asyncio.Semaphore(_AT_ONCE)

    async def one(right: Right) -> bool:
        async with limit:
            spec: Json = {**who, "resourceAttributes": _attributes(right)}
            body: Json = {"apiVersion": review.api_version, "kind": review.kind, "spec": spec}
            return flag(await client.create(review, "", body), "status", "allowed")

    async def every() -> Mapping[Right, bool]:
        ordered = sorted(rights)
        return dict(zip(ordered, await asyncio.gather(*map(one, ordered)), strict=True))

    return await observe(every(), what)


def _attributes(right: Right) -> Json:
    resource, _, subresource = right.resource.partition("/")
    attributes: Json = {"verb": right.verb, "group": right.group, "resource": resource}
    optional = {"subresource": subresource, "namespace": right.namespace, "name": right.name}
    return attributes | {key: value for key, value in optional.items() if value}
