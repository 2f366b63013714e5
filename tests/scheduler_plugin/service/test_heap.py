"""Objects read at startup are excluded from garbage collection."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator

import pytest

from scheduler_plugin.__main__ import INTERVAL, LONGEST_START, THRESHOLDS, freeze_garbage_collector
from tests.fake_clock import FakeClock, settle


@pytest.fixture(autouse=True)
def _give_back() -> Iterator[None]:
    usual = gc.get_threshold()
    yield
    gc.enable()
    gc.unfreeze()
    gc.set_threshold(*usual)


async def test_heap_is_frozen_after_initial_list() -> None:
    clock, is_ready = FakeClock(), False
    before = gc.get_freeze_count()
    task = asyncio.create_task(freeze_garbage_collector(clock, lambda: is_ready))
    await settle()
    assert (gc.get_freeze_count(), gc.isenabled()) == (before, False)
    was_read: list[list[int]] = [[] for _ in range(1000)]
    is_ready = True
    await clock.advance(INTERVAL)
    await task
    assert gc.get_freeze_count() >= before + len(was_read)
    assert (gc.get_threshold(), gc.isenabled()) == (THRESHOLDS, True)


async def test_startup_gc_always_resumes() -> None:
    clock = FakeClock()
    task = asyncio.create_task(freeze_garbage_collector(clock, lambda: False))
    await settle()
    assert not gc.isenabled()
    await clock.advance(LONGEST_START)
    assert gc.isenabled()
    task.cancel()
    await asyncio.wait([task])
    assert gc.isenabled()
