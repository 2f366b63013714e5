"""Waits of demonstrations and measurements, each with a limit."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

from protocol.runtime.clock import Clock
from protocol.units import Seconds

_LOOK: Final = Seconds(0.05)


async def comes(holds: Callable[[], bool], clock: Clock, at_most: Seconds) -> bool:
    """Return True as soon as ``holds`` does, False after ``at_most``."""

    async def look() -> bool:
        return holds()

    return await answers(look, clock, at_most)


async def answers(holds: Callable[[], Awaitable[bool]], clock: Clock, at_most: Seconds) -> bool:
    """The same of a condition that has to be asked for."""
    deadline = clock.now() + at_most
    while not await holds():
        if clock.now() >= deadline:
            return False
        await clock.sleep(_LOOK)
    return True
