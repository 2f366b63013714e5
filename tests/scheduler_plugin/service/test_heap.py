"""What was read at the start is no business of the garbage collector any more."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator

import pytest

from scheduler_plugin.service.heap import INTERVAL, THRESHOLDS, set_aside
from tests.fake_clock import FakeClock, settle


@pytest.fixture(autouse=True)
def _give_back() -> Iterator[None]:
    usual = gc.get_threshold()
    yield
    gc.unfreeze()
    gc.set_threshold(*usual)


async def test_the_heap_is_set_aside_once_the_cluster_has_been_read() -> None:
    clock, is_ready = FakeClock(), False
    before = gc.get_freeze_count()
    task = asyncio.create_task(set_aside(clock, lambda: is_ready))
    await settle()
    assert gc.get_freeze_count() == before
    is_ready = True
    await clock.advance(INTERVAL)
    await task
    assert gc.get_freeze_count() > before + 1000
    assert gc.get_threshold() == THRESHOLDS
