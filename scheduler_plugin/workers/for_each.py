"""The same call for many items, several at a time: those that hang until their time-out do not delay the others."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Final, TypeVar

AT_ONCE: Final = 48
"""Calls under way: less than half of the connections to the API server, the rest is for increases and binds."""

T = TypeVar("T")
R = TypeVar("R")


async def for_each(things: Iterable[T], call: Callable[[T], Awaitable[R]], at_once: int = AT_ONCE) -> list[R]:
    """Results of ``call`` for each of ``things``, in their order."""
    places = asyncio.Semaphore(at_once)

    async def called(thing: T) -> R:
        async with places:
            return await call(thing)

    async with asyncio.TaskGroup() as tasks:
        calls = [tasks.create_task(called(thing)) for thing in things]
    return [task.result() for task in calls]
