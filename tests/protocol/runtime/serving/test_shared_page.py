"""Pages that are costly to make are made seldom, however many ask for them."""

from __future__ import annotations

import asyncio

import pytest

from protocol.runtime.serving.shared_page import REUSED_TIMES, SharedPage
from protocol.units import Seconds
from tests.fake_clock import FakeClock


class Metrics:
    """A page that takes ``seconds`` to make."""

    def __init__(self, clock: FakeClock, seconds: float) -> None:
        self.clock, self.seconds, self.made = clock, Seconds(seconds), 0

    async def page(self) -> bytes:
        self.made += 1
        await self.clock.sleep(self.seconds)
        return b"page %d" % self.made


async def test_costly_page_is_made_seldom() -> None:
    clock = FakeClock()
    metrics = Metrics(clock, 0.5)
    page = SharedPage(metrics.page, clock)
    requests = [asyncio.ensure_future(page.read()) for _ in range(100)]
    await clock.advance(0.5)
    assert {await request for request in requests} == {b"page 1"}
    await clock.advance(REUSED_TIMES * 0.5 - 0.1)
    assert await page.read() == b"page 1"
    await clock.advance(0.1)
    request = asyncio.ensure_future(page.read())
    await clock.advance(0.5)
    assert await request == b"page 2"


async def test_cheap_page_is_always_new() -> None:
    clock = FakeClock()
    page = SharedPage(Metrics(clock, 0.0).page, clock)
    assert [await page.read(), await page.read()] == [b"page 1", b"page 2"]


async def test_failed_page_is_made_again() -> None:
    clock, failures = FakeClock(), [OSError("no file")]

    async def make() -> bytes:
        if failures:
            raise failures.pop()
        return b"page"

    page = SharedPage(make, clock)
    with pytest.raises(OSError, match="no file"):
        await page.read()
    assert await page.read() == b"page"
