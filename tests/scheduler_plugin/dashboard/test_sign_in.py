from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec
import pytest

from protocol.kubernetes.access_reviews import Scope
from scheduler_plugin.dashboard.core.sessions import CHECKED_FOR, LASTS, Visitor
from scheduler_plugin.dashboard.detail_queries import OF_THE_VM_ALONE
from scheduler_plugin.dashboard.reviews import AccessReviewer
from scheduler_plugin.dashboard.sign_in import COOKIE, SIGNING
from scheduler_plugin.history.sqlite.queries import SqliteHistory
from scheduler_plugin.web.models import VmModel
from tests.fake_clock import settle
from tests.scheduler_plugin.dashboard.page_cluster import page, put_vm

SECRETS = ("/api/events", "/api/vms/default/db", "/api/groups/default/Hvpa/shop", "/api/settings")


async def test_link_signs_in_one_browser() -> None:
    async with page() as run:
        first = await run.sign_in(run.links[0])
        assert (first.status_code, first.json()["title"], len(run.links)) == (200, "here", 2)
        cookie = first.headers["set-cookie"].lower()
        assert all(word in cookie for word in ("httponly", "samesite=strict"))
        assert "path=" not in cookie, "a browser keeps it to the addresses below that of the sign-in"
        run.http.cookies.clear()
        again = await run.sign_in(run.links[0])
        assert (again.status_code, "set-cookie" in again.headers) == (401, False)


@pytest.mark.parametrize("path", SECRETS)
async def test_forged_session_sees_nothing(path: str) -> None:
    async with page() as run:
        put_vm(run.cluster, "db")
        await settle()
        for headers in ({}, {"Cookie": f"{COOKIE}=forged"}):
            answer = await run.http.get(path, headers=headers)
            assert (answer.status_code, answer.json()) == (401, {"error": "sign in first"})


async def test_session_ends_by_time_or_sign_out() -> None:
    async with page() as run:
        await run.sign_in(run.links[-1])
        assert (await run.http.get("/api/session")).json()["signedIn"]
        run.clock.jump(LASTS)
        assert not (await run.http.get("/api/session")).json()["signedIn"]
        await run.sign_in(run.links[-1])
        own = {"Content-Type": "application/json"}
        await run.http.request("DELETE", "/api/session", headers=own)
        assert not (await run.http.get("/api/session")).json()["signedIn"]


async def test_two_local_pages_have_separate_sessions() -> None:
    async with page(host="127.0.0.1:10290") as run:
        cookie = (await run.sign_in(run.links[-1])).headers["set-cookie"]
        assert cookie.startswith("autoscale-session-10290=")
        assert (await run.http.get("/api/session")).json()["signedIn"]
        run.http.headers["Host"] = "127.0.0.1:10291"
        assert not (await run.http.get("/api/session")).json()["signedIn"]


@pytest.mark.parametrize(
    ("headers", "body", "status"),
    [
        ({"Content-Type": "text/plain"}, b'{"token": "a"}', 403),
        ({"Content-Type": "application/json", "Sec-Fetch-Site": "cross-site"}, b'{"token": "a"}', 403),
        ({"Content-Type": "application/json"}, b"no JSON", 400),
        ({"Content-Type": "application/json"}, b'{"token": "\xff"}', 400),
        ({"Content-Type": "application/json"}, b" " * 20_000, 400),
        ({"Content-Type": "application/json"}, b'{"token": "' + b"a" * 16_500 + b'"}', 401),
        ({"Content-Type": "application/json"}, b'{"token": ""}', 401),
    ],
)
async def test_a_bad_sign_in_is_refused(headers: dict[str, str], body: bytes, status: int) -> None:
    async with page() as run:
        answer = await run.http.post("/api/session", headers=headers, content=body)
        assert (answer.status_code, "set-cookie" in answer.headers) == (status, False)


async def test_token_shows_listable_namespaces() -> None:
    async with page(on_a_cluster=True, host="page.example") as run:
        put_vm(run.cluster, "a", "shop")
        put_vm(run.cluster, "b", "bank")
        run.told.scheduler["/settings"] = {"schedulerName": "autoscale-scheduler"}
        run.told.scheduler["/explain/shop/a"] = {"makingRoom": ["bank/b moves away"], "pods": []}
        run.cluster.people = {"clerk": {"shop"}, "admin": {"*", "*/pods"}, "guest": set()}
        await settle()
        assert [(await run.sign_in(each)).status_code for each in ("nobody", "guest", "clerk")] == [401, 401, 200]
        paths = ("/api/vms/shop/a", "/api/vms/bank/b", "/api/vms/shop/none", "/api/settings")
        assert [(await run.http.get(path)).status_code for path in paths] == [200, 404, 404, 404]
        assert "bank" not in (await run.http.get("/api/vms/shop/a")).text
        await run.sign_in("admin")
        assert [(await run.http.get(path)).status_code for path in paths] == [200, 200, 404, 200]
        assert "bank/b moves away" in (await run.http.get("/api/vms/shop/a")).text


async def test_namespaces_are_reviewed_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two at a time: who may list the last ones comes in, sees the others soon, and none that is withdrawn."""
    monkeypatch.setattr("scheduler_plugin.dashboard.reviews.AT_A_TIME", 2)
    names = [f"n-{at}" for at in range(6)]
    async with page(on_a_cluster=True) as run:
        for each in names:
            put_vm(run.cluster, "db", each)
        await settle()
        run.cluster.people = {"clerk": {"n-0", "n-2", "n-4", "n-5"}, "late": {"n-5"}, "guest": {"n-9"}}

        async def seen() -> list[str]:
            await run.clock.advance(CHECKED_FOR)
            return [each for each in names if (await run.http.get(f"/api/vms/{each}/db")).status_code == 200]

        assert [(await run.sign_in(each)).status_code for each in ("guest", "late", "clerk")] == [401, 200, 200]
        assert await seen() == ["n-0", "n-2"]
        assert [await seen() for _ in range(2)] == [["n-0", "n-2", "n-4", "n-5"]] * 2
        run.cluster.people["clerk"] = {"n-5"}
        assert [await seen() for _ in range(3)][-1] == ["n-5"]


async def test_a_token_that_is_withdrawn_ends_its_session() -> None:
    async with page(on_a_cluster=True) as run:
        run.cluster.people = {"admin": {"*"}}
        await run.sign_in("admin")
        await run.clock.advance(CHECKED_FOR)
        assert (await run.http.get("/api/session")).json()["signedIn"]
        run.cluster.people.clear()
        assert (await run.http.get("/api/session")).json()["signedIn"]
        await run.clock.advance(CHECKED_FOR)
        assert not (await run.http.get("/api/session")).json()["signedIn"]


async def test_sign_out_during_review_ends_stream() -> None:
    async with page(on_a_cluster=True) as run:
        run.cluster.people = {"admin": {"*"}}
        await run.sign_in("admin")
        authenticator = run.dashboard.authenticator
        (session,) = authenticator.sessions._open.values()
        authenticator.reviewer = reviewer = Leaving(authenticator.reviewer, lambda: authenticator.sessions.end(session))
        run.clock.jump(CHECKED_FOR)
        assert (await authenticator.renewed(session), reviewer.asked) == (None, 1)


async def test_session_review_is_shared_by_pages() -> None:
    async with page(on_a_cluster=True) as run:
        run.cluster.people = {"admin": {"*"}}
        await run.sign_in("admin")
        authenticator = run.dashboard.authenticator
        (session,) = authenticator.sessions._open.values()
        authenticator.reviewer = reviewer = Leaving(authenticator.reviewer, lambda: None)
        for at in (1, 2):
            run.clock.jump(CHECKED_FOR)
            found = await asyncio.gather(*(authenticator.renewed(session) for _ in range(16)))
            assert (len({each.checked for each in found if each}), reviewer.asked) == (1, at)
        run.cluster.people.clear()
        run.clock.jump(CHECKED_FOR)
        assert await asyncio.gather(*(authenticator.renewed(session) for _ in range(16))) == [None] * 16
        assert (reviewer.asked, len(authenticator._renewing)) == (3, 0)


class Leaving:
    """Something happens while the API server is asked."""

    def __init__(self, reviewer: AccessReviewer | None, happens: Callable[[], None]) -> None:
        self.asked = 0
        self._judge, self._happens = reviewer, happens

    async def visitor(self, token: str, scopes: Iterable[Scope], before: Visitor | None = None) -> Visitor | None:
        assert self._judge is not None
        self.asked += 1
        self._happens()
        return await self._judge.visitor(token, scopes, before)


async def test_api_outage_ends_sessions() -> None:
    async with page(on_a_cluster=True) as run:
        run.cluster.people = {"admin": {"*"}}
        await run.sign_in("admin")
        run.cluster.go_away()
        assert (await run.sign_in("admin")).status_code == 503
        await run.clock.advance(CHECKED_FOR)
        assert not (await run.http.get("/api/session")).json()["signedIn"]


async def test_vm_history_is_empty_without_store(tmp_path: Path) -> None:
    async with page() as run:
        await run.sign_in(run.links[-1])
        path = "/api/past/default/db?seconds=900"
        for history in (None, SqliteHistory(tmp_path / "history.sqlite")):
            run.dashboard.details.history = history
            assert (await run.http.get(path)).json()["at"] == []
        assert (await run.http.get(f"{path}0000000")).status_code == 422


async def test_dot_name_is_escaped() -> None:
    async with page(on_a_cluster=True) as run:
        put_vm(run.cluster, "db", "shop")
        run.cluster.people = {"clerk": {"shop"}}
        run.told.groups = {"/explain/shop/%2E%2E/%2E": {"is": "as it was asked for"}}
        await settle()
        await run.sign_in("clerk")
        assert (await run.http.get("/api/groups/shop/%2e%2e/%2e")).json() == {"is": "as it was asked for"}
        assert (await run.http.get("/api/vms/shop/%2e")).status_code == 404


@pytest.mark.parametrize(("said", "is_secure"), [("https", True), ("http", False), ("", False)])
async def test_tls_proxy_makes_cookie_secure(said: str, is_secure: bool) -> None:
    async with page() as run:
        run.http.headers["X-Forwarded-Proto"] = said
        assert ("secure" in (await run.sign_in(run.links[0])).headers["set-cookie"].lower()) is is_secure


async def test_sign_in_flood_spares_sessions() -> None:
    async with page(on_a_cluster=True) as run:
        run.cluster.people = {"admin": {"*"}}
        await run.sign_in("admin")
        reviewer = SlowForStrangers(run.dashboard.authenticator.reviewer)
        run.dashboard.authenticator.reviewer = reviewer
        flood = [asyncio.ensure_future(run.dashboard.authenticator.sign_in(f"stranger {at}")) for at in range(50)]
        await settle()
        run.clock.jump(CHECKED_FOR)
        assert (await run.http.get("/api/session")).json()["signedIn"]
        assert reviewer.waiting == SIGNING
        for each in flood:
            each.cancel()
        await asyncio.gather(*flood, return_exceptions=True)


class SlowForStrangers:
    """An API server that takes forever over tokens that it does not know."""

    def __init__(self, reviewer: AccessReviewer | None) -> None:
        self.waiting = 0
        self._judge = reviewer

    async def visitor(self, token: str, scopes: Iterable[Scope], before: Visitor | None = None) -> Visitor | None:
        if token.startswith("stranger"):
            self.waiting += 1
            await asyncio.Event().wait()
        assert self._judge is not None
        return await self._judge.visitor(token, scopes, before)


def test_explanation_fields_are_classified() -> None:
    of_others = {"leader", "migrationsIdle", "stuck", "makingRoom", "gaveBack", "noRoomToGrow"}
    assert {each.encode_name for each in msgspec.structs.fields(VmModel)} == OF_THE_VM_ALONE | of_others
