"""Writes for agents are paced, by key."""

from __future__ import annotations

import asyncio

from scheduler_plugin.workers.pacing import BURST, Pacer
from tests.fake_clock import FakeClock, settle


async def test_only_newest_of_those_that_wait_goes_on(clock: FakeClock) -> None:
    pacer: Pacer[str] = Pacer(clock)
    assert [await pacer.turn("db") for _ in range(BURST)] == [True] * BURST
    waiting = [asyncio.create_task(pacer.turn("db")) for _ in range(100)]
    await settle()
    assert (sum(task.done() for task in waiting), await pacer.turn("shop")) == (0, True)
    await clock.advance(5)
    assert [await task for task in waiting] == [False] * 99 + [True]


async def test_keys_written_long_ago_are_forgotten(clock: FakeClock) -> None:
    pacer: Pacer[int] = Pacer(clock)
    for key in range(100):
        await pacer.turn(key)
    await clock.advance(1)
    await pacer.turn(7)
    assert list(pacer._paced) == [7]
