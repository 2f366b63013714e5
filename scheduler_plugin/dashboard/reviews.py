"""The API server's word on who signs in and what it may list.

Rules that hold here:

- TokenReview says who it is; SubjectAccessReview says whether it may list VMs: of all namespaces, or of each by itself.
- At most ``AT_ONCE`` sign-ins are judged at a time; what waits longer than ``PATIENCE`` is told to come again.
- No answer is no permission.
- However many namespaces there are, ``AT_A_TIME`` of them are asked about each time, in turn: who may list one of
  thousands comes in at once, and sees the others within a few renewals.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Iterable
from typing import Final, NamedTuple, Protocol

from protocol.kubernetes.objects import Json, JsonObject, child, flag, text
from protocol.kubernetes.resources import SUBJECT_ACCESS_REVIEWS, TOKEN_REVIEWS, VIRTUAL_MACHINES
from protocol.units import Seconds
from scheduler_plugin.cluster.api import ApiCall, KubernetesApi
from scheduler_plugin.dashboard.core.sight import ALL, NOTHING, Sight

TIMEOUT: Final = Seconds(5.0)
PATIENCE: Final = 10.0
AT_ONCE: Final = 4
QUESTIONS: Final = 16
"""Reviews of one sign-in at the same time."""
AT_A_TIME: Final = 1000
"""Namespaces."""


class Visitor(NamedTuple):
    """Whose a token is to the API server, what they may see, and which namespace was asked about last."""

    who: str
    sight: Sight
    asked_to: str = ""


class Judge(Protocol):
    """Says whose a token is and what its bearer may see."""

    async def visitor(self, token: str, namespaces: Iterable[str], before: Visitor | None = None) -> Visitor | None:
        """None where the token is no good, or allows nothing. ``before`` is what was answered the last time.

        Raises ``ApiError`` and ``TimeoutError``.
        """


class ApiJudge:
    """Asks over ``api``."""

    def __init__(self, api: KubernetesApi) -> None:
        self._api = api
        self._turns = asyncio.Semaphore(AT_ONCE)
        self._questions = asyncio.Semaphore(QUESTIONS)

    async def visitor(self, token: str, namespaces: Iterable[str], before: Visitor | None = None) -> Visitor | None:
        """See ``Judge``."""
        async with asyncio.timeout(PATIENCE), self._turns:
            status = child(await self._review(TOKEN_REVIEWS.kind, TOKEN_REVIEWS.path(), {"token": token}), "status")
            user = child(status, "user")
            who = text(user, "username")
            if not flag(status, "authenticated") or not who:
                return None
            if await self._may_list(user, ""):
                return Visitor(who, ALL)
            return await self._of_namespaces(user, sorted(namespaces), before or Visitor(who, NOTHING))

    async def _of_namespaces(self, user: JsonObject, names: list[str], before: Visitor) -> Visitor | None:
        """Asks about the next namespaces, and about more of them until one is allowed."""
        seen, after, left = (before.sight.namespaces or frozenset()) & set(names), before.asked_to, len(names)
        while left:
            asked = in_turn(names, after)[: min(AT_A_TIME, left)]
            allowed = await asyncio.gather(*(self._may_list(user, each) for each in asked))
            seen = seen.difference(asked).union(each for each, may in zip(asked, allowed, strict=True) if may)
            after, left = asked[-1], left - len(asked)
            if seen:
                return Visitor(text(user, "username"), Sight(seen), after)
        return None

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


def in_turn(names: list[str], after: str) -> list[str]:
    """Sorted names, those after ``after`` first.

    >>> in_turn(["a", "b", "c"], "b"), in_turn(["a", "c"], "b"), in_turn(["a"], "z")
    (['c', 'a', 'b'], ['c', 'a'], ['a'])
    """
    at = bisect_right(names, after)
    return names[at:] + names[:at]
