"""A limit on concurrent calls to programs that tenants run, which may respond as late as they like."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager


def next_owner(waiting: Collection[str], used: Counter[str]) -> str:
    """The first of ``waiting`` (not empty) with the fewest ``used``, which has only counts above zero.

    >>> next_owner(["a", "b", "c"], Counter(a=2, b=1, c=1))
    'b'
    """
    # Few use any, but tens of thousands may wait.
    idle = next((owner for owner in waiting if owner not in used), None)
    return min(waiting, key=used.__getitem__) if idle is None else idle


class FairSlots:
    """At most ``limit`` slots in use, for use in one event loop.

    An owner gets another slot only while it has fewer than are free. So one that keeps all of its slots leaves half of
    them to the others, two leave a third, and so on.
    """

    def __init__(self, limit: int) -> None:
        self._free = limit
        self._used: Counter[str] = Counter()
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}

    @asynccontextmanager
    async def slot(self, owner: str) -> AsyncIterator[None]:
        """Wait for a slot; it is free again at the end of the context."""
        await self._take(owner)
        try:
            yield
        finally:
            self._release(owner)

    async def _take(self, owner: str) -> None:
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(owner, deque()).append(turn)
        self._grant()
        try:
            await turn
        except asyncio.CancelledError:
            # It may have been granted in the same turn of the event loop.
            if not turn.cancelled():
                self._release(owner)
            raise

    def _release(self, owner: str) -> None:
        self._used[owner] -= 1
        if not self._used[owner]:
            del self._used[owner]
        self._free += 1
        self._grant()

    def _grant(self) -> None:
        while self._waiting and self._free:
            # Among equals, the one whose last turn was longest ago.
            owner = next_owner(self._waiting, self._used)
            if self._used[owner] >= self._free:
                return
            turns = self._waiting.pop(owner)
            turn = turns.popleft()
            if turns:
                self._waiting[owner] = turns
            if not turn.cancelled():
                self._free -= 1
                self._used[owner] += 1
                turn.set_result(None)
