"""The API server's word on who signs in and what it may list.

Rules that hold here:

- TokenReview says who it is; SubjectAccessReview says whether it may list VMs: of all namespaces, or of each by itself.
- At most ``AT_ONCE`` sign-ins are judged at a time; what waits longer than ``PATIENCE`` is told to come again.
- No answer is no permission.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Final, NamedTuple, Protocol

from protocol.kubernetes.objects import Json, JsonObject, child, flag, text
from protocol.kubernetes.resources import SUBJECT_ACCESS_REVIEWS, TOKEN_REVIEWS, VIRTUAL_MACHINES
from protocol.units import Seconds
from scheduler_plugin.cluster.api import ApiCall, KubernetesApi
from scheduler_plugin.dashboard.core.sight import ALL, Sight

TIMEOUT: Final = Seconds(5.0)
PATIENCE: Final = 10.0
AT_ONCE: Final = 4
QUESTIONS: Final = 16
"""Reviews of one sign-in at the same time."""
MOST_NAMESPACES: Final = 1000


class Visitor(NamedTuple):
    """The bearer of a token: their name to the API server, and what they may see."""

    who: str
    sight: Sight


class Judge(Protocol):
    """Says whose a token is and what its bearer may see."""

    async def visitor(self, token: str, namespaces: Iterable[str]) -> Visitor | None:
        """None where the token is no good, or allows nothing. Raises ``ApiError`` and ``TimeoutError``."""


class ApiJudge:
    """Asks over ``api``."""

    def __init__(self, api: KubernetesApi) -> None:
        self._api = api
        self._turns = asyncio.Semaphore(AT_ONCE)
        self._questions = asyncio.Semaphore(QUESTIONS)

    async def visitor(self, token: str, namespaces: Iterable[str]) -> Visitor | None:
        """See ``Judge``."""
        async with asyncio.timeout(PATIENCE), self._turns:
            status = child(await self._review(TOKEN_REVIEWS.kind, TOKEN_REVIEWS.path(), {"token": token}), "status")
            user = child(status, "user")
            who = text(user, "username")
            if not flag(status, "authenticated") or not who:
                return None
            if await self._may_list(user, ""):
                return Visitor(who, ALL)
            asked = sorted(namespaces)[:MOST_NAMESPACES]
            allowed = await asyncio.gather(*(self._may_list(user, each) for each in asked))
        seen = frozenset(each for each, may in zip(asked, allowed, strict=True) if may)
        return Visitor(who, Sight(seen)) if seen else None

    async def _may_list(self, user: JsonObject, namespace: str) -> bool:
        spec: Json = {
            "user": text(user, "username"),
            "uid": text(user, "uid"),
            "groups": user.get("groups") or [],
            "extra": child(user, "extra"),
            "resourceAttributes": {
                "verb": "list",
                "group": VIRTUAL_MACHINES.group,
                "resource": VIRTUAL_MACHINES.plural,
                "namespace": namespace,
            },
        }
        async with self._questions:
            found = await self._review(SUBJECT_ACCESS_REVIEWS.kind, SUBJECT_ACCESS_REVIEWS.path(), spec)
        return flag(found, "status", "allowed")

    async def _review(self, kind: str, path: str, spec: JsonObject) -> JsonObject:
        version = (TOKEN_REVIEWS if kind == TOKEN_REVIEWS.kind else SUBJECT_ACCESS_REVIEWS).api_version
        body = {"apiVersion": version, "kind": kind, "spec": spec}
        return await self._api.call(ApiCall("POST", path, TIMEOUT, body=body))
