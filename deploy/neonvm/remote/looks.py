"""Turns in which runner pods are polled: a fixed number at a time, however many pods there are.

A pod that was silent the last time waits only with other silent ones, so it delays no pod that answers.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from deploy.neonvm.ports import GuestError


class Looks:
    """``turns`` for pods at a time, and ``for_silent`` more for those that did not answer the last time."""

    def __init__(self, turns: int = 128, for_silent: int = 32) -> None:
        self._turns = asyncio.Semaphore(turns)
        self._for_silent = asyncio.Semaphore(for_silent)
        self._silent: set[str] = set()

    @asynccontextmanager
    async def turn(self, who: str) -> AsyncIterator[None]:
        """The turn of that pod. A ``GuestError`` in it means that the pod was silent."""
        # A silent pod may keep its turn until its time-out.
        async with self._for_silent if who in self._silent else self._turns:
            try:
                yield
            except GuestError:
                # Remembered until it answers: the next turn waits with the other silent ones.
                self._silent.add(who)
                raise
            self._silent.discard(who)

    def forget(self, who: str) -> None:
        """The pod is gone."""
        self._silent.discard(who)
