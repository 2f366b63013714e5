"""A flood of tokens costs the API server little, and the good tokens among them nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest

from protocol.kubernetes.objects import JsonObject
from protocol.units import Seconds
from scheduler_plugin.auth import authenticator
from scheduler_plugin.auth.authenticator import CONCURRENCY, QUEUE, OverloadedError, TokenAuthenticator
from scheduler_plugin.auth.identity import Identity
from scheduler_plugin.cluster.api import ApiUnknownError
from tests.fake_clock import FakeClock, settle
from tests.scheduler_plugin.objects import label_of, plain_pod, token_of, token_text

AUDIENCE = "autoscale-scheduler"
AGENT = Identity("default:agent", "default", "p", "pod-p")
GOOD = {"status": token_of(plain_pod("p"))}


@dataclass
class ApiServer:
    """Accepts tokens whose label begins with ``good``; takes ``takes`` seconds for each, or fails."""

    clock: FakeClock
    takes: float = 0.0
    is_away: bool = False
    asked: list[str] = field(default_factory=list)
    busy: int = 0
    busiest: int = 0

    async def review(self, token: str, audience: str) -> JsonObject:
        assert audience == AUDIENCE
        self.asked.append(label_of(token))
        self.busy += 1
        self.busiest = max(self.busy, self.busiest)
        try:
            if self.takes:
                await self.clock.sleep(Seconds(self.takes))
        finally:
            self.busy -= 1
        if self.is_away:
            raise ApiUnknownError("the API is away")
        return GOOD if label_of(token).startswith("good") else {"status": {"authenticated": False}}


@asynccontextmanager
async def asking(server: ApiServer) -> AsyncIterator[TokenAuthenticator]:
    found = TokenAuthenticator(server.review, server.clock)
    running = asyncio.create_task(found.run())
    try:
        yield found
        assert not running.done()
    finally:
        running.cancel()
        await asyncio.wait([running])


@pytest.fixture
def server() -> ApiServer:
    return ApiServer(FakeClock())


def shows(found: TokenAuthenticator, label: str) -> Awaitable[Identity | None]:
    return found.identify(f"Bearer {token_text(label)}", AUDIENCE)


async def outcomes(found: TokenAuthenticator, *labels: str) -> list[Identity | BaseException | None]:
    return await asyncio.gather(*(shows(found, label) for label in labels), return_exceptions=True)


async def test_two_hundred_requests_with_one_token_are_one_question(server: ApiServer) -> None:
    async with asking(server) as found:
        assert await outcomes(found, *["good"] * 200) == [AGENT] * 200
    assert server.asked == ["good"]


async def test_thousands_of_junk_tokens_are_a_few_questions_and_the_rest_is_turned_away_at_once(
    server: ApiServer,
) -> None:
    server.takes = 0.02
    async with asking(server) as found:
        pending = asyncio.gather(*(shows(found, f"bad{i}") for i in range(2000)), return_exceptions=True)
        await settle()
        assert server.busiest == CONCURRENCY
        await server.clock.advance(1)
        turned_away = [one for one in await pending if isinstance(one, OverloadedError)]
    assert len(turned_away) == 2000 - QUEUE
    assert len(server.asked) == QUEUE
    assert server.busiest == CONCURRENCY


async def test_no_flood_of_bad_tokens_pushes_out_a_good_verdict(
    server: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(authenticator, "REMEMBERED", 100)
    async with asking(server) as found:
        await shows(found, "good")
        for i in range(1000):
            assert await shows(found, f"bad{i}") is None
        server.asked.clear()
        assert await shows(found, "good") == AGENT
    assert server.asked == []


@pytest.mark.parametrize(
    "header",
    [
        None,
        "",
        "Basic abc",
        "Bearer ",
        "Bearer junk",
        "Bearer " + "x" * 20_000,
        f"Bearer {token_text('no audience', aud=['other'])}",
        f"Bearer {token_text('long ago', exp=1)}",
        f"Bearer {token_text('bound to nothing', **{'kubernetes.io': {}})}",
    ],
)
async def test_what_cannot_be_the_token_of_an_agent_costs_no_question(server: ApiServer, header: str | None) -> None:
    async with asking(server) as found:
        assert found.is_refused(header, AUDIENCE)
        assert await found.identify(header, AUDIENCE) is None
    assert server.asked == []


async def test_what_is_known_of_a_token_costs_no_question(server: ApiServer) -> None:
    """Before a request is read only what is known counts: a new token may be good."""
    async with asking(server) as found:
        assert not found.is_refused(f"Bearer {token_text('bad')}", AUDIENCE)
        assert [await shows(found, label) for label in ("good", "bad")] == [AGENT, None]
        server.asked.clear()
        assert not found.is_refused(f"Bearer {token_text('good')}", AUDIENCE)
        assert found.is_refused(f"Bearer {token_text('bad')}", AUDIENCE)
    assert server.asked == []


async def test_only_so_many_verdicts_are_kept(server: ApiServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(authenticator, "REMEMBERED", 2)
    async with asking(server) as found:
        for label in ("a", "b", "c", "c", "a"):
            assert await shows(found, label) is None
    assert server.asked == ["a", "b", "c", "a"]


async def test_a_bad_token_that_is_shown_again_and_again_is_asked_about_every_few_seconds(server: ApiServer) -> None:
    async with asking(server) as found:
        for _ in range(20):
            assert await shows(found, "bad") is None
            await server.clock.advance(1)
    assert server.asked == ["bad"] * 4


async def test_while_the_api_is_away_all_who_wait_hear_of_it_and_the_next_asks_anew(server: ApiServer) -> None:
    server.is_away = True
    async with asking(server) as found:
        assert [type(one) for one in await outcomes(found, "good", "good")] == [ApiUnknownError] * 2
        server.is_away = False
        assert await shows(found, "good") == AGENT
    assert server.asked == ["good", "good"]


async def test_what_waited_too_long_for_its_turn_is_told_to_come_again(server: ApiServer) -> None:
    server.takes = 2.5
    async with asking(server) as found:
        labels = [f"good{i}" for i in range(CONCURRENCY + 1)]
        pending = asyncio.create_task(outcomes(found, *labels))
        await server.clock.advance(3)
        *served, late = await pending
    assert (served, type(late)) == ([AGENT] * CONCURRENCY, OverloadedError)
    assert server.asked == labels[:-1]


async def test_a_request_that_goes_away_takes_nothing_from_the_others(server: ApiServer) -> None:
    server.takes = 1.0
    async with asking(server) as found:
        first, second = (asyncio.ensure_future(shows(found, "good")) for _ in range(2))
        await settle()
        first.cancel()
        await server.clock.advance(1)
        assert await second == AGENT
        assert first.cancelled()


async def test_a_good_verdict_ends_with_its_token(server: ApiServer) -> None:
    header = f"Bearer {token_text('good', exp=server.clock.wall() + 20)}"
    async with asking(server) as found:
        for seconds, asked in ((0, 1), (19, 1), (2, 2), (4, 2), (2, 3)):
            await server.clock.advance(seconds)
            assert await found.identify(header, AUDIENCE) == AGENT
            assert len(server.asked) == asked
