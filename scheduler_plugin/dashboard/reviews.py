"""The API server's word on who signs in and what it may list."""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Iterable
from typing import Final, NamedTuple, Protocol

from protocol.kubernetes.access_reviews import is_allowed, may_list_vms, token_review, user_in
from protocol.kubernetes.api import ApiCall, KubernetesApi
from protocol.kubernetes.objects import JsonObject, text
from protocol.kubernetes.resources import SUBJECT_ACCESS_REVIEWS, TOKEN_REVIEWS
from protocol.units import Seconds
from scheduler_plugin.dashboard.core.sight import ALL, NOTHING, VisibilityFilter

TIMEOUT: Final = Seconds(5.0)
PATIENCE: Final = 10.0
AT_ONCE: Final = 4
QUESTIONS: Final = 16
"""Access reviews under way at the same time, for all visitors together."""
AT_A_TIME: Final = 1000
"""Namespaces that are asked about in one batch."""


class Visitor(NamedTuple):
    """The user of a token by the API server's word, the namespaces they may see, and the one asked about last."""

    who: str
    sight: VisibilityFilter
    asked_to: str = ""


class AccessReviewer(Protocol):
    """Says whose a token is and what its bearer may see."""

    async def visitor(self, token: str, namespaces: Iterable[str], before: Visitor | None = None) -> Visitor | None:
        """None if the token is no good, or allows nothing. ``before`` is the last answer for this token.

        Raises ``ApiError`` and ``TimeoutError``.
        """


class ApiJudge:
    """Asks over ``api``."""

    def __init__(self, api: KubernetesApi) -> None:
        self._api = api
        self._turns = asyncio.Semaphore(AT_ONCE)
        self._questions = asyncio.Semaphore(QUESTIONS)

    async def visitor(self, token: str, namespaces: Iterable[str], before: Visitor | None = None) -> Visitor | None:
        """See ``AccessReviewer``."""
        # A sign-in that waits too long for its turn gets a 503.
        async with asyncio.timeout(PATIENCE), self._turns:
            user = user_in(await self._review(TOKEN_REVIEWS.path(), token_review(token)))
            if user is None:
                return None
            who = text(user, "username")
            # About all namespaces first: one question may replace thousands.
            if await self._may_list(user, ""):
                return Visitor(who, ALL)
            return await self._of_namespaces(user, sorted(namespaces), before or Visitor(who, NOTHING))

    async def _of_namespaces(self, user: JsonObject, names: list[str], before: Visitor) -> Visitor | None:
        """Asks about the next namespaces, and about more of them until one is allowed."""
        visible, after, remaining = (before.sight.namespaces or frozenset()) & set(names), before.asked_to, len(names)
        while remaining:
            # In turn: somebody who may list a few of thousands gets in soon, and sees all of them after a few renewals.
            batch = in_turn(names, after)[: min(AT_A_TIME, remaining)]
            allowed = await asyncio.gather(*(self._may_list(user, name) for name in batch))
            # Namespaces of this batch that are no longer allowed go; those of earlier batches stay until asked again.
            visible = visible.difference(batch).union(name for name, may in zip(batch, allowed, strict=True) if may)
            # The next renewal continues from here.
            after, remaining = batch[-1], remaining - len(batch)
            if visible:
                return Visitor(text(user, "username"), VisibilityFilter(visible), after)
        return None

    async def _may_list(self, user: JsonObject, namespace: str) -> bool:
        async with self._questions:
            return is_allowed(await self._review(SUBJECT_ACCESS_REVIEWS.path(), may_list_vms(user, namespace)))

    async def _review(self, path: str, body: JsonObject) -> JsonObject:
        return await self._api.call(ApiCall("POST", path, TIMEOUT, body=body))


def in_turn(names: list[str], after: str) -> list[str]:
    """Sorted names, those after ``after`` first.

    >>> in_turn(["a", "b", "c"], "b"), in_turn(["a", "c"], "b"), in_turn(["a"], "z")
    (['c', 'a', 'b'], ['c', 'a'], ['a'])
    """
    at = bisect_right(names, after)
    return names[at:] + names[:at]
