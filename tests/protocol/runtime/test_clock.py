"""The machine's clock as a port."""

from __future__ import annotations

import asyncio
import time

from protocol.runtime.clock import SystemClock, wait_until
from protocol.units import Instant, Seconds


async def test_clock_has_loop_and_wall_time() -> None:
    clock = SystemClock()
    assert abs(clock.now() - asyncio.get_running_loop().time()) < 1.0
    assert abs(clock.wall() - time.time()) < 1.0
    assert 0.0 <= clock.jitter() < 1.0


async def test_it_waits_for_the_event_or_the_instant() -> None:
    clock, event = SystemClock(), asyncio.Event()
    await clock.sleep(Seconds(0.0))
    await clock.wait(event, Instant(clock.now() - 1.0))
    assert not event.is_set()
    event.set()
    await clock.wait(event, None)


async def test_wait_ends_with_its_condition_or_its_limit() -> None:
    looks = iter((False, True))
    assert await wait_until(lambda: next(looks), SystemClock(), Seconds(60.0))
    assert not await wait_until(lambda: False, SystemClock(), Seconds(0.0))
