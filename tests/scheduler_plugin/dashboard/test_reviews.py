"""Reviews of permissions: a token without any costs one of every namespace, and must not cost others their session."""

from __future__ import annotations

import asyncio

from protocol.kubernetes.access_reviews import Scope
from protocol.kubernetes.api import ApiCall
from protocol.kubernetes.objects import JsonObject, child, text
from scheduler_plugin.dashboard.core.sessions import Visitor
from scheduler_plugin.dashboard.core.visibility import NOTHING, VisibilityFilter
from scheduler_plugin.dashboard.reviews import QUESTIONS, ApiAccessReviewer
from tests.fake_clock import settle
from tests.scheduler_plugin.fake_cluster import FakeCluster


class Slow(FakeCluster):
    """Knows every token as a user of that name; what the thief may read in a namespace takes until ``go_on``."""

    def __init__(self) -> None:
        super().__init__()
        self.go_on, self.waiting = asyncio.Event(), 0

    async def call(self, call: ApiCall) -> JsonObject:
        spec = child(call.body or {}, "spec")
        if call.path.endswith("/tokenreviews"):
            return {"status": {"authenticated": True, "user": {"username": spec["token"]}}}
        namespace = text(spec, "resourceAttributes", "namespace")
        if spec["user"] == "clerk":
            return {"status": {"allowed": namespace == "n1"}}
        self.waiting += bool(namespace)
        if namespace:
            await self.go_on.wait()
        return {"status": {"allowed": False}}


async def test_sign_ins_without_rights_delay_no_renewal() -> None:
    cluster = Slow()
    reviewer, scopes = ApiAccessReviewer(cluster), [Scope(f"n{number}") for number in range(100)]
    thieves = [asyncio.ensure_future(reviewer.visitor("thief", scopes)) for _ in range(2)]
    await settle()
    assert cluster.waiting == QUESTIONS
    async with asyncio.timeout(5):
        clerk = await reviewer.visitor("clerk", scopes, Visitor("clerk", NOTHING))
    assert clerk is not None
    assert clerk.visibility == VisibilityFilter(frozenset({Scope("n1")}))
    cluster.go_on.set()
    assert await asyncio.gather(*thieves) == [None, None]
