"""Reviews of users' tokens and permissions by the API server."""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Iterable
from typing import Final, Protocol

from protocol.kubernetes.access_reviews import Scope, access_review, is_allowed, token_review, user_in
from protocol.kubernetes.api import ApiCall, KubernetesApi
from protocol.kubernetes.objects import JsonObject, text
from protocol.kubernetes.resources import SUBJECT_ACCESS_REVIEWS, TOKEN_REVIEWS
from protocol.units import Seconds
from scheduler_plugin.dashboard.core.sessions import Visitor
from scheduler_plugin.dashboard.core.visibility import EVERYTHING, NOTHING, VisibilityFilter

TIMEOUT: Final = Seconds(5.0)
PATIENCE: Final = 10.0
AT_ONCE: Final = 4
QUESTIONS: Final = 8
"""Maximum number of concurrent access reviews of sign-ins, and of renewals of sessions."""
AT_A_TIME: Final = 1000
"""Number of scopes per batch of reviews."""


class AccessReviewer(Protocol):
    """Reviews tokens and the permissions of their users."""

    async def visitor(self, token: str, scopes: Iterable[Scope], before: Visitor | None = None) -> Visitor | None:
        """The token's user; None if the token is invalid or its user may see nothing.

        ``before`` is the last result for this token. Raises ``ApiError`` and ``TimeoutError``.
        """


class ApiAccessReviewer:
    """Reviews by the API server at ``api``."""

    def __init__(self, api: KubernetesApi) -> None:
        self._api = api
        self._turns = asyncio.Semaphore(AT_ONCE)
        # A token without rights costs a review of every scope. Sessions end if their renewals wait for those too long.
        self._of_sign_ins, self._of_renewals = asyncio.Semaphore(QUESTIONS), asyncio.Semaphore(QUESTIONS)

    async def visitor(self, token: str, scopes: Iterable[Scope], before: Visitor | None = None) -> Visitor | None:
        """See ``AccessReviewer``."""
        # A sign-in that waits too long gets status 503.
        questions = self._of_sign_ins if before is None else self._of_renewals
        async with asyncio.timeout(PATIENCE), self._turns:
            user = user_in(await self._review(TOKEN_REVIEWS.path(), token_review(token)))
            if user is None:
                return None
            user_name = text(user, "username")
            # All namespaces first, because one review may replace thousands.
            whole = [scope for scope in sorted(EVERYTHING) if await self._may_read(user, scope, questions)]
            everywhere = frozenset(whole)
            rest = sorted(scope for scope in scopes if scope.everywhere not in everywhere)
            return await self._of_scopes(user, rest, everywhere, before or Visitor(user_name, NOTHING), questions)

    async def _of_scopes(
        self,
        user: JsonObject,
        scopes: list[Scope],
        everywhere: frozenset[Scope],
        before: Visitor,
        questions: asyncio.Semaphore,
    ) -> Visitor | None:
        """Review the next scopes, and more until the user may read one."""
        visible, after, remaining = before.visibility.scopes & set(scopes), before.reviewed_last, len(scopes)
        while remaining:
            # Continue after the last one. A user with access to few of thousands of namespaces can sign in soon, and
            # sees all of them after a few renewals.
            at = bisect_right(scopes, after)
            batch = (scopes[at:] + scopes[:at])[: min(AT_A_TIME, remaining)]
            allowed = await asyncio.gather(*(self._may_read(user, scope, questions) for scope in batch))
            # Remove denied scopes of this batch; scopes of earlier batches stay until they are reviewed again.
            visible = visible.difference(batch).union(scope for scope, may in zip(batch, allowed, strict=True) if may)
            # The next renewal continues here.
            after, remaining = batch[-1], remaining - len(batch)
            if visible or everywhere:
                break
        scopes_now = everywhere | visible
        return Visitor(text(user, "username"), VisibilityFilter(scopes_now), after) if scopes_now else None

    async def _may_read(self, user: JsonObject, scope: Scope, questions: asyncio.Semaphore) -> bool:
        async with questions:
            return is_allowed(await self._review(SUBJECT_ACCESS_REVIEWS.path(), access_review(user, scope)))

    async def _review(self, path: str, body: JsonObject) -> JsonObject:
        return await self._api.call(ApiCall("POST", path, TIMEOUT, body=body))
