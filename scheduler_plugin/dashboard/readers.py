"""Event streams of open pages: each gets a snapshot and then changes, at its own speed."""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from protocol.runtime.clock import Clock
from protocol.units import Instant, Seconds
from scheduler_plugin.dashboard.core.frames import HEARTBEAT, next_frame, revision_in
from scheduler_plugin.dashboard.core.journal import Journal
from scheduler_plugin.dashboard.core.visibility import VisibilityFilter
from scheduler_plugin.dashboard.telemetry import DashboardTelemetry

TICK: Final = Seconds(0.2)
BEAT: Final = Seconds(10.0)
MOST: Final = 64
MOST_OF_ONE: Final = 16
"""Maximum number of open pages per user."""
SHARED: Final = 16
"""Maximum number of frames cached for pages with the same revision."""

ReadVisibility = Callable[[], Awaitable[VisibilityFilter | None]]
"""Returns the user's present permissions; None once the session has ended."""


@dataclass(eq=False, slots=True)
class _OpenPage:
    """A page of a user; users with the same ``quota_key`` share a quota."""

    user_key: bytes
    quota_key: bytes
    is_displaced: bool = False


class Readers:
    """All open pages of the program. ``run`` must be running."""

    def __init__(self, journal: Journal, epoch: str, clock: Clock, telemetry: DashboardTelemetry) -> None:
        self.journal, self.epoch = journal, epoch
        # A dict as an ordered set, oldest first.
        self._open: dict[_OpenPage, None] = {}
        self._clock, self._telemetry = clock, telemetry
        # Changes set the first event at any time; the second wakes the pages at most once per tick.
        self._changed, self._next_turn = asyncio.Event(), asyncio.Event()
        self._frames: OrderedDict[tuple[int | None, int, VisibilityFilter], tuple[bytes, int]] = OrderedDict()

    @property
    def count(self) -> int:
        """Number of open pages."""
        return len(self._open)

    def is_full(self, user_key: bytes) -> bool:
        """Return True if this user may open no more pages."""
        return sum(page.user_key == user_key for page in self._open) >= MOST_OF_ONE

    def notify(self) -> None:
        """Signal that the journal has changed."""
        self._changed.set()

    async def run(self) -> None:
        """Wake the pages after changes, at most once per tick, until cancelled."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            # A new event for the next tick, because the old one must stay set until all pages have woken up.
            self._next_turn.set()
            self._next_turn = asyncio.Event()
            await self._clock.sleep(TICK)

    async def frames(
        self, read_visibility: ReadVisibility, last_id: str, user_key: bytes = b"", quota_key: bytes = b""
    ) -> AsyncIterator[bytes]:
        """Yield frames for a page whose last event was ``last_id``, until its user loses all permissions, or the page
        is displaced by another one.

        Nothing is yielded if the user has too many pages: several may pass ``is_full`` at once.
        """
        if self.is_full(user_key):
            return
        page = self._admitted(user_key, quota_key)
        self._telemetry.readers.inc()
        revision, before, silent_since = None, None, self._clock.now()
        try:
            while not page.is_displaced and (visibility := await read_visibility()) is not None:
                # Take the event before the frame is built, so that later changes set it.
                turn = self._next_turn
                # After a change of permissions start with a snapshot.
                if visibility != before:
                    revision = revision_in(last_id, f"{self.epoch}{visibility.tag}")
                    before, last_id = visibility, ""
                frame, revision = self._next(visibility, revision)
                if not frame and self._clock.now() - silent_since >= BEAT:
                    frame = HEARTBEAT
                if frame:
                    self._telemetry.sent.inc(len(frame))
                    yield frame
                    silent_since = self._clock.now()
                # A slow page may be behind already; then continue immediately.
                if revision == self.journal.revision:
                    await self._clock.wait(turn, Instant(silent_since + BEAT))
        finally:
            self._open.pop(page, None)
            self._telemetry.readers.dec()

    def _admitted(self, user_key: bytes, quota_key: bytes) -> _OpenPage:
        """Add a page. If there are too many, it displaces the oldest one of the ``quota_key`` that has most."""
        if self.count >= MOST:
            largest, _ = Counter(page.quota_key for page in self._open).most_common(1)[0]
            displaced = next(page for page in self._open if page.quota_key == largest)
            displaced.is_displaced = True
            del self._open[displaced]
            self.notify()
        page = _OpenPage(user_key, quota_key)
        self._open[page] = None
        return page

    def _next(self, visibility: VisibilityFilter, revision: int | None) -> tuple[bytes, int]:
        """The next frame, shared by pages with the same permissions and revision."""
        key = revision, self.journal.revision, visibility
        if key not in self._frames:
            self._frames[key] = next_frame(self.journal, f"{self.epoch}{visibility.tag}", visibility, revision)
            # Drop the oldest frame, because pages that keep up need the newest.
            if len(self._frames) > SHARED:
                self._frames.popitem(last=False)
        return self._frames[key]
