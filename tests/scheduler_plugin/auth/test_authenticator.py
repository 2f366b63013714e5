"""A flood of tokens costs the API server little, and the good tokens among them nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest

from protocol.kubernetes.access_reviews import CallerIdentity
from protocol.kubernetes.api import ApiUnknownError
from protocol.kubernetes.objects import JsonObject
from protocol.units import Seconds
from scheduler_plugin.auth import authenticator
from scheduler_plugin.auth.authenticator import CONCURRENCY, QUEUE, QUEUE_OF_ONE, OverloadedError, TokenAuthenticator
from tests.fake_clock import FakeClock, settle
from tests.scheduler_plugin.objects import label_of, plain_pod, token_of, token_text

AUDIENCE = "autoscale-scheduler"
AGENT = CallerIdentity("default:agent", "default", "p", "pod-p")
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


def shows(found: TokenAuthenticator, label: str, address: str = "10.0.0.7") -> Awaitable[CallerIdentity | None]:
    return found.identify(f"Bearer {token_text(label)}", AUDIENCE, address)


async def outcomes(found: TokenAuthenticator, *labels: str) -> list[CallerIdentity | BaseException | None]:
    return await asyncio.gather(*(shows(found, label) for label in labels), return_exceptions=True)


async def test_equal_tokens_share_one_review(server: ApiServer) -> None:
    async with asking(server) as found:
        assert await outcomes(found, *["good"] * 200) == [AGENT] * 200
    assert server.asked == ["good"]


async def test_junk_tokens_cost_few_reviews(
    server: ApiServer,
) -> None:
    server.takes = 0.02
    async with asking(server) as found:
        tokens = (shows(found, f"bad{i}", f"10.0.1.{i % 200}") for i in range(2000))
        pending = asyncio.gather(*tokens, return_exceptions=True)
        await settle()
        assert server.busiest == CONCURRENCY
        await server.clock.advance(1)
        turned_away = [one for one in await pending if isinstance(one, OverloadedError)]
    assert len(turned_away) == 2000 - QUEUE
    assert len(server.asked) == QUEUE
    assert server.busiest == CONCURRENCY


async def test_junk_of_one_address_delays_no_agent(server: ApiServer) -> None:
    """A pod that kept the queue full kept the permits of all agents whose verdicts had expired."""
    server.takes = 0.02
    async with asking(server) as found:
        junk = asyncio.gather(*(shows(found, f"bad{i}") for i in range(2000)), return_exceptions=True)
        await settle()
        agent = asyncio.ensure_future(shows(found, "good", "10.0.0.8"))
        await server.clock.advance(1)
        assert await agent == AGENT
        assert sum(isinstance(one, OverloadedError) for one in await junk) == 2000 - QUEUE_OF_ONE
        server.takes = 0.0
        assert await shows(found, "good2") == AGENT, "its places are free again"


async def test_bad_token_flood_keeps_good_verdicts(server: ApiServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(authenticator, "CACHE_SIZE", 100)
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
async def test_implausible_token_costs_no_review(server: ApiServer, header: str | None) -> None:
    async with asking(server) as found:
        assert found.is_refused(header, AUDIENCE)
        assert await found.identify(header, AUDIENCE, "10.0.0.7") is None
    assert server.asked == []


async def test_known_token_costs_no_review(server: ApiServer) -> None:
    """Before a request is read, only known tokens count: a new token may be valid."""
    async with asking(server) as found:
        assert not found.is_refused(f"Bearer {token_text('bad')}", AUDIENCE)
        assert [await shows(found, label) for label in ("good", "bad")] == [AGENT, None]
        server.asked.clear()
        assert not found.is_refused(f"Bearer {token_text('good')}", AUDIENCE)
        assert found.is_refused(f"Bearer {token_text('bad')}", AUDIENCE)
    assert server.asked == []


async def test_only_so_many_verdicts_are_kept(server: ApiServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(authenticator, "CACHE_SIZE", 2)
    async with asking(server) as found:
        for label in ("a", "b", "c", "c", "a"):
            assert await shows(found, label) is None
    assert server.asked == ["a", "b", "c", "a"]


async def test_bad_token_is_reviewed_every_few_seconds(server: ApiServer) -> None:
    async with asking(server) as found:
        for _ in range(20):
            assert await shows(found, "bad") is None
            await server.clock.advance(1)
    assert server.asked == ["bad"] * 4


async def test_api_outage_fails_all_waiters(server: ApiServer) -> None:
    server.is_away = True
    async with asking(server) as found:
        assert [type(one) for one in await outcomes(found, "good", "good")] == [ApiUnknownError] * 2
        server.is_away = False
        assert await shows(found, "good") == AGENT
    assert server.asked == ["good", "good"]


async def test_long_queued_request_is_redirected(server: ApiServer) -> None:
    server.takes = 2.5
    async with asking(server) as found:
        labels = [f"good{i}" for i in range(CONCURRENCY + 1)]
        pending = asyncio.create_task(outcomes(found, *labels))
        await server.clock.advance(3)
        *served, late = await pending
    assert (served, type(late)) == ([AGENT] * CONCURRENCY, OverloadedError)
    assert server.asked == labels[:-1]


async def test_cancelled_request_affects_no_other(server: ApiServer) -> None:
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
            assert await found.identify(header, AUDIENCE, "10.0.0.7") == AGENT
            assert len(server.asked) == asked
