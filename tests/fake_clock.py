"""The clock of all tests: time advances only when a test advances it, and randomness comes from the test."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from itertools import count
from math import inf, nextafter

from protocol.units import Instant, Seconds

BEGAN = datetime(2026, 1, 1, tzinfo=UTC).timestamp()
"""What ``wall`` says when ``now`` is zero."""

MOST_ROUNDS = 400
"""Rounds of the event loop after which a test goes on although tasks still run."""

QUIET_ROUNDS = 3
"""Rounds in a row without a callback after which nothing more happens by itself."""


def loop_is_quiet() -> bool:
    """True if no other callback is ready to run. Asyncio has no public way to ask."""
    return not asyncio.get_running_loop()._ready  # type: ignore[attr-defined]


async def settle() -> None:
    """Lets every task run until it waits for something outside."""
    quiet = 0
    for _ in range(MOST_ROUNDS):
        await asyncio.sleep(0)
        quiet = quiet + 1 if loop_is_quiet() else 0
        if quiet == QUIET_ROUNDS:
            return


class _Alarm:
    """Cancels the task that sets it once ``due`` is done, as ``asyncio.timeout`` does without a task more."""

    def __init__(self, due: asyncio.Future[None]) -> None:
        self._task = asyncio.current_task()
        self._rang = False
        self.is_set = True
        due.add_done_callback(self._ring)

    def _ring(self, _: asyncio.Future[None]) -> None:
        if self.is_set and self._task is not None:
            self._rang = self._task.cancel()

    def was_that(self) -> bool:
        """True if nothing else cancelled the task. Asked once."""
        return self._rang and self._task is not None and self._task.uncancel() == 0


class FakeClock:
    """A ``Clock`` whose time only ``advance`` moves."""

    def __init__(self, start: float = 1000.0, jitter: float = 0.5) -> None:
        self.fraction = jitter
        self._now = start
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []
        self._order = count()

    def now(self) -> Instant:
        return Instant(self._now)

    def wall(self) -> float:
        return BEGAN + self._now

    def jitter(self) -> float:
        return self.fraction

    async def sleep(self, duration: Seconds) -> None:
        # A pause that is lost in rounding is over only when time passes, as with any other clock.
        at = self._now + duration
        with self._due(nextafter(at, inf) if at == self._now and duration > 0 else at) as due:
            await due

    async def wait(self, event: asyncio.Event, until: Instant | None) -> None:
        if until is None or event.is_set():
            await event.wait()
            return
        with self._due(until) as due:
            alarm = _Alarm(due)
            try:
                await event.wait()
            except asyncio.CancelledError:
                if not alarm.was_that():
                    raise
            finally:
                alarm.is_set = False

    async def advance(self, duration: float) -> None:
        """Passes time. Each sleeper wakes at its own moment, and everything happens that then can."""
        end = self._now + duration
        await settle()
        while self._sleepers and self._sleepers[0][0] <= end:
            self.jump(max(0.0, self._sleepers[0][0] - self._now))
            await settle()
        self._now = end
        await settle()

    def jump(self, duration: float) -> None:
        """Passes time at once: tasks that would have woken in between wake late."""
        self._now += duration
        while self._sleepers and self._sleepers[0][0] <= self._now:
            due = heapq.heappop(self._sleepers)[2]
            if not due.done():
                due.set_result(None)

    @property
    def sleepers(self) -> int:
        """Number of tasks that wait for the clock."""
        return sum(not due.done() for _, _, due in self._sleepers)

    @contextmanager
    def _due(self, at: float) -> Iterator[asyncio.Future[None]]:
        """A future that is done at ``at``; forgotten when left."""
        due: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if at <= self._now:
            due.set_result(None)
        else:
            heapq.heappush(self._sleepers, (at, next(self._order), due))
        try:
            yield due
        finally:
            due.cancel()


class SleepingClock(FakeClock):
    """A clock for stories of one task: sleeping itself passes the time, at once."""

    async def sleep(self, duration: Seconds) -> None:
        self._now += duration
        await asyncio.sleep(0)
