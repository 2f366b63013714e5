"""Open pages: each gets a snapshot and then what changed, as fast as it reads and no faster."""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Final

from protocol.runtime.clock import Clock
from protocol.units import Instant, Seconds
from scheduler_plugin.dashboard.core.frames import HEARTBEAT, next_frame, revision_in
from scheduler_plugin.dashboard.core.journal import Journal
from scheduler_plugin.dashboard.core.sight import VisibilityFilter
from scheduler_plugin.dashboard.telemetry import DashboardTelemetry

TICK: Final = Seconds(0.2)
BEAT: Final = Seconds(10.0)
MOST: Final = 64
# Open pages of one person, so that nobody takes all places.
MOST_OF_ONE: Final = 16
SHARED: Final = 16
"""How many frames are kept for readers who have seen the same."""

Sees = Callable[[], Awaitable[VisibilityFilter | None]]
"""What a reader may see now; None: nothing any more."""


class Readers:
    """All open pages of one program. ``run`` must be running."""

    def __init__(self, journal: Journal, epoch: str, clock: Clock, telemetry: DashboardTelemetry) -> None:
        self.journal, self.epoch = journal, epoch
        self._open: Counter[bytes] = Counter()
        self._clock, self._telemetry = clock, telemetry
        # Two events: news sets the first at any time, the second lets readers go on once a tick.
        self._stir, self._turn = asyncio.Event(), asyncio.Event()
        self._frames: OrderedDict[tuple[int | None, int, VisibilityFilter], tuple[bytes, int]] = OrderedDict()

    @property
    def count(self) -> int:
        """The number of readers."""
        return self._open.total()

    def is_full(self, person: bytes) -> bool:
        """Return True if no more pages may be opened: by anybody, or by this person."""
        return self.count >= MOST or self._open[person] >= MOST_OF_ONE

    def stir(self) -> None:
        """There is news."""
        self._stir.set()

    async def run(self) -> None:
        """Wakes the readers, at most once a tick."""
        while True:
            await self._stir.wait()
            self._stir.clear()
            # A new event for the next turn: readers keep the old one, which stays set until all of them have woken up.
            self._turn.set()
            self._turn = asyncio.Event()
            await self._clock.sleep(TICK)

    async def frames(self, sees: Sees, last_id: str, person: bytes = b"") -> AsyncIterator[bytes]:
        """Frames for one reader whose last event was ``last_id``, until it may see nothing any more.

        None at all if too many pages are open: several may have passed ``is_full`` at the same moment.
        """
        if self.is_full(person):
            return
        self._open[person] += 1
        self._telemetry.readers.inc()
        revision, before, silent_since = None, None, self._clock.now()
        try:
            while (sight := await sees()) is not None:
                # Taken before the frame is made, so that news that arrives meanwhile sets this very event.
                turn = self._turn
                # Whoever may see more or less than before begins again with a snapshot.
                if sight != before:
                    revision = revision_in(last_id, f"{self.epoch}{sight.tag}")
                    before, last_id = sight, ""
                frame, revision = self._next(sight, revision)
                if not frame and self._clock.now() - silent_since >= BEAT:
                    frame = HEARTBEAT
                if frame:
                    self._telemetry.sent.inc(len(frame))
                    yield frame
                    silent_since = self._clock.now()
                # A slow reader may be behind by the time its frame is sent; then it continues at once.
                if revision == self.journal.revision:
                    await self._clock.wait(turn, Instant(silent_since + BEAT))
        finally:
            self._open -= Counter((person,))  # forgets people who read no more
            self._telemetry.readers.dec()

    def _next(self, sight: VisibilityFilter, seen: int | None) -> tuple[bytes, int]:
        """The next frame, made once for all readers with the same rights who have seen the same."""
        key = seen, self.journal.revision, sight
        if key not in self._frames:
            self._frames[key] = next_frame(self.journal, f"{self.epoch}{sight.tag}", sight, seen)
            # Drops the oldest: readers that keep up ask for the newest.
            if len(self._frames) > SHARED:
                self._frames.popitem(last=False)
        return self._frames[key]
