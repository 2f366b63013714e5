"""Slots that owners share: whoever keeps his for long leaves some to the others."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

from protocol.runtime.serving.fair_slots import FairSlots
from tests.fake_clock import settle
from tests.steps import steps


class Calls:
    """Calls that last until they are ended; ``active`` are those that have a slot."""

    def __init__(self, limit: int) -> None:
        self.slots = FairSlots(limit)
        self.active: list[str] = []
        self._calls: dict[str, tuple[asyncio.Task[None], asyncio.Event]] = {}

    async def begin(self, *names: str) -> None:
        for name in names:
            ended = asyncio.Event()
            self._calls[name] = asyncio.create_task(self._call(name, ended)), ended
        await settle()

    async def end(self, *names: str) -> None:
        for name in names:
            self._calls[name][1].set()
        await settle()

    async def cancel(self, *names: str) -> None:
        for name in names:
            self._calls[name][0].cancel()
        await settle()

    async def _call(self, name: str, ended: asyncio.Event) -> None:
        async with self.slots.slot(name[0]):
            self.active.append(name)
            try:
                await ended.wait()
            finally:
                self.active.remove(name)


async def test_owner_leaves_as_many_as_it_uses() -> None:
    calls = Calls(6)
    await calls.begin("a1", "a2", "a3", "a4", "b1", "b2", "c1")
    assert calls.active == ["a1", "a2", "a3", "b1", "b2", "c1"]
    await calls.end("a1", "a2", "a3", "b1", "b2", "c1")
    assert calls.active == ["a4"]
    await calls.end("a4")
    await calls.begin("a1", "a2", "a3", "a4")
    assert calls.active == ["a1", "a2", "a3"]


async def test_owner_with_fewest_slots_comes_first() -> None:
    calls = Calls(4)
    await calls.begin("a1", "a2", "a3", "b1", "b2", "c1", "c2", "a4")
    assert calls.active == ["a1", "a2", "b1", "c1"]
    await calls.end("c1")
    assert calls.active == ["a1", "a2", "b1", "c2"]
    await calls.end("c2", "a1", "a2")
    assert calls.active == ["b1", "a3", "b2"]
    await calls.end("b1", "b2", "a3")
    assert calls.active == ["a4"]


async def test_cancelled_call_keeps_no_slot() -> None:
    calls = Calls(1)
    await calls.begin("a1", "a2", "a3", "b1")
    assert calls.active == ["a1"]
    await calls.cancel("a2", "b1", "a1")
    assert calls.active == ["a3"]
    await calls.end("a3")
    await calls.begin("b2")
    assert calls.active == ["b2"]


async def test_slot_granted_to_cancelled_call_is_free() -> None:
    slots = FairSlots(1)
    async with AsyncExitStack() as first:
        await first.enter_async_context(slots.slot("a"))
        second = asyncio.create_task(slots.slot("b").__aenter__())
        await settle()
        await first.aclose()
        # Granted, but not resumed yet.
        second.cancel()
        await asyncio.wait((second,))
    async with asyncio.timeout(1), slots.slot("c"):
        assert second.cancelled()


def test_many_owners_cost_no_search() -> None:
    """Each VM may have a namespace of its own."""

    async def calls(count: int) -> None:
        slots = FairSlots(8)

        async def call(owner: str) -> None:
            async with slots.slot(owner):
                await asyncio.sleep(0)

        await asyncio.gather(*(call(str(number)) for number in range(count)))

    few, many = steps(lambda: asyncio.run(calls(100))), steps(lambda: asyncio.run(calls(1_000)))
    assert many < 11 * few
