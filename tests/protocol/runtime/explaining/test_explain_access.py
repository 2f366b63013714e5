"""Explanations are only for users who may list the VMs, and the API server is queried rarely."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path

import pytest

from protocol.kubernetes.access_reviews import Scope
from protocol.kubernetes.objects import JsonObject, child, text
from protocol.runtime.explaining.explain_access import (
    ALLOWED_FOR,
    AUDIENCE,
    DENIED_FOR,
    MAX_OF_PEER,
    MAX_WAITING,
    REMEMBERED,
    Caller,
    ReviewedAccess,
    ReviewError,
    TokenInFile,
    audience_of_agents,
)
from protocol.units import Seconds
from tests.fake_clock import FakeClock, settle
from tests.protocol.kubernetes.test_access_reviews import jwt


def shows(token: str, peer: str = "10.1.2.3", local: str = "10.1.0.1") -> Caller:
    return Caller(f"Bearer {token}" if token else "", peer, local)


CLERK = jwt(aud=[AUDIENCE], sub="clerk")
THIEF = jwt(aud=[AUDIENCE], sub="thief")


@dataclass
class ApiServer:
    """Knows the clerk, who may list the VMs of ``shop`` and get the pods of ``bank``."""

    clock: FakeClock = field(default_factory=FakeClock)
    asked: list[str] = field(default_factory=list)
    is_away: bool = False
    hold: asyncio.Event | None = None

    async def review(self, path: str, body: JsonObject) -> JsonObject:
        self.asked.append(path.rsplit("/", 1)[-1])
        if self.hold is not None:
            await self.hold.wait()
        if self.is_away:
            raise ReviewError("connection refused")
        spec = child(body, "spec")
        if path.endswith("tokenreviews"):
            is_known = text(spec, "token") == CLERK
            return {
                "status": {
                    "authenticated": is_known,
                    "audiences": spec.get("audiences"),
                    "user": {"username": "clerk"} if is_known else {},
                }
            }
        asked = child(spec, "resourceAttributes")
        asked_to = text(asked, "verb"), text(asked, "resource"), text(asked, "namespace")
        return {"status": {"allowed": asked_to in {("list", "virtualmachines", "shop"), ("get", "pods", "bank")}}}

    def access(self) -> ReviewedAccess:
        return ReviewedAccess(self.review, self.clock, AUDIENCE)


SHOP = Scope("shop")


async def status(access: ReviewedAccess, caller: Caller, scope: Scope = SHOP) -> int:
    denial = await access.denial(caller, scope)
    return 200 if denial is None else denial.status


@pytest.mark.parametrize(
    ("caller", "scope", "expected"),
    [
        (shows(""), SHOP, 401),
        (shows("junk"), SHOP, 401),
        (Caller(f"Basic {CLERK}", "10.1.2.3", "10.1.0.1"), SHOP, 401),
        (shows(jwt(aud=["https://kubernetes.default.svc"], sub="clerk")), SHOP, 401),
        (shows(THIEF), SHOP, 401),
        (shows(CLERK), SHOP, 200),
        (shows(CLERK), Scope("shop", of_pods=True), 403),
        (shows(CLERK), Scope("bank"), 403),
        (shows(CLERK), Scope("bank", of_pods=True), 200),
        (shows(CLERK), Scope(), 403),
        (shows(CLERK), Scope(of_pods=True), 403),
    ],
)
async def test_only_who_may_read_is_told(caller: Caller, scope: Scope, expected: int) -> None:
    """Any pod of the cluster could once read every node, every VM and the settings."""
    assert await status(ApiServer().access(), caller, scope) == expected


@pytest.mark.parametrize(
    ("peer", "local", "expected"),
    [
        ("127.0.0.1", "127.0.0.1", 200),
        ("::1", "::1", 200),
        ("::ffff:127.0.0.1", "::ffff:127.0.0.1", 200),
        ("127.0.0.6", "127.0.0.1", 401),
        ("127.0.0.1", "10.1.0.1", 401),
        ("10.1.0.1", "10.1.0.1", 401),
        ("", "", 401),
    ],
)
async def test_port_forward_needs_no_token(peer: str, local: str, expected: int) -> None:
    """It ends at the pod's own loopback; a mesh's proxy comes from 127.0.0.6 in the name of strangers."""
    server = ApiServer()
    assert await status(server.access(), shows("", peer, local), Scope()) == expected
    assert server.asked == []


async def test_answers_are_kept_for_a_while() -> None:
    server = ApiServer()
    access = server.access()
    for token, kept in ((CLERK, ALLOWED_FOR), (THIEF, DENIED_FOR)):
        server.asked.clear()
        first = await status(access, shows(token))
        asked = len(server.asked)
        await server.clock.advance(kept - 0.1)
        assert (await status(access, shows(token)), len(server.asked)) == (first, asked)
        await server.clock.advance(Seconds(0.2))
        assert (await status(access, shows(token)), len(server.asked)) == (first, 2 * asked)


@pytest.mark.parametrize("is_away", [False, True])
async def test_requests_at_once_share_one_review(*, is_away: bool) -> None:
    """A recorder asks the agent of a node about many VMs at once, also whenever its review has expired."""
    server = ApiServer(hold=asyncio.Event(), is_away=is_away)
    access, count = server.access(), 2 * MAX_WAITING
    waiting = [asyncio.create_task(status(access, shows(CLERK))) for _ in range(count)]
    await settle()
    assert server.hold is not None
    server.hold.set()
    assert await asyncio.gather(*waiting) == [503 if is_away else 200] * count
    assert server.asked == ["tokenreviews", "subjectaccessreviews"][: 1 if is_away else 2]


async def test_review_survives_its_first_caller() -> None:
    """Other callers that wait for it get a retry, and the next one starts a new review."""
    server = ApiServer(hold=asyncio.Event())
    access = server.access()
    first, second = (asyncio.create_task(status(access, shows(CLERK))) for _ in range(2))
    await settle()
    first.cancel()
    assert await second == 503
    assert server.hold is not None
    server.hold.set()
    assert await status(access, shows(CLERK)) == 200


async def test_no_answer_is_no_permission() -> None:
    server = ApiServer(is_away=True)
    denial = await server.access().denial(shows(CLERK), SHOP)
    assert denial is not None
    assert (denial.status, "connection refused" in denial.error) == (HTTPStatus.SERVICE_UNAVAILABLE, True)


async def test_flood_of_tokens_is_turned_away() -> None:
    server = ApiServer(hold=asyncio.Event())
    access = server.access()
    junk = (shows(jwt(aud=[AUDIENCE], n=n), f"10.1.3.{n % 16}") for n in range(MAX_WAITING))
    waiting = [asyncio.create_task(status(access, caller)) for caller in junk]
    await settle()
    assert await status(access, shows(CLERK)) == 503
    assert server.hold is not None
    server.hold.set()
    assert set(await asyncio.gather(*waiting)) == {401}
    assert await status(access, shows(CLERK)) == 200


async def test_flood_of_one_address_delays_no_other() -> None:
    """A flood used to take all slots for reviews, so that no other client got a response."""
    server = ApiServer(hold=asyncio.Event())
    access = server.access()
    junk = [asyncio.create_task(status(access, shows(jwt(aud=[AUDIENCE], n=n)))) for n in range(2 * MAX_WAITING)]
    await settle()
    clerk = asyncio.create_task(status(access, shows(CLERK, "10.1.2.4")))
    assert server.hold is not None
    server.hold.set()
    assert await clerk == 200
    assert sorted(await asyncio.gather(*junk)) == [401] * MAX_OF_PEER + [503] * (2 * MAX_WAITING - MAX_OF_PEER)
    assert await status(access, shows(CLERK)) == 200, "its places are free again"


async def test_only_so_many_answers_are_kept() -> None:
    server = ApiServer()
    access = server.access()
    for number in range(REMEMBERED + 1):
        assert await status(access, shows(CLERK), Scope(f"n{number}")) == 403
    server.asked.clear()
    assert await status(access, shows(CLERK), Scope("n1")) == 403
    assert server.asked == []
    assert await status(access, shows(CLERK), Scope("n0")) == 403
    assert server.asked != []


async def test_token_in_a_file_alone_opens(tmp_path: Path) -> None:
    """On one machine every peer is on loopback, other users too."""
    file = tmp_path / "token"
    access = TokenInFile(file)
    local = {"peer": "127.0.0.1", "local": "127.0.0.1"}
    assert await access.denial(shows("", **local), Scope()) is not None
    file.write_text("secret\n")
    assert await access.denial(shows("secret", **local), Scope()) is None
    for other in ("", "other", "sécret"):
        assert await access.denial(shows(other, **local), Scope()) is not None


def test_tokens_for_agents_open_one_namespace() -> None:
    """A user who impersonates an agent in his own namespace gains nothing with the tokens that he receives."""
    assert len({AUDIENCE, audience_of_agents("shop"), audience_of_agents("bank")}) == 3
