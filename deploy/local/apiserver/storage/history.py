"""The recent past of one resource: what watches read, and what lists of an earlier revision are rebuilt from.

Rules that hold here:

- Changes are in the order of their revisions and never altered. The text of an event is made once for all watchers.
- A watcher is a place in the history, not a queue: a slow one costs nothing and, when its place has been dropped,
  learns that it is too late (410).
- ``floor`` is the greatest revision about which something may have been dropped: everything after it is known.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from itertools import islice
from typing import NamedTuple

from deploy.local.apiserver.apimachinery.jsonvalue import JsonObject


class Key(NamedTuple):
    """Where an object is: resource (``plural.group``), namespace (``""`` where the resource has none) and name."""

    resource: str
    namespace: str
    name: str


@dataclass(frozen=True, slots=True)
class Stored:
    """One state of one object. ``raw`` is its JSON text; ``body`` must not be changed."""

    key: Key
    revision: int
    body: JsonObject
    raw: bytes


class ChangeType(StrEnum):
    """What happened to an object, as watch events call it."""

    ADDED = "ADDED"
    MODIFIED = "MODIFIED"
    DELETED = "DELETED"


@dataclass(frozen=True, slots=True)
class Change:
    """One step of the history. ``now`` is the last state of a deleted object, at the revision of its end."""

    type: ChangeType
    now: Stored
    before: Stored | None
    line: bytes

    @property
    def revision(self) -> int:
        """The revision that this change made."""
        return self.now.revision


def event_line(kind: ChangeType, raw: bytes) -> bytes:
    """The text of a watch event."""
    return b'{"type":"%s","object":%s}\n' % (kind.encode(), raw)


class TooOldError(Exception):
    """The history no longer reaches back so far. ``floor`` is the oldest revision that can be asked for."""

    def __init__(self, floor: int) -> None:
        super().__init__(f"history begins after revision {floor}")
        self.floor = floor


class History:
    """The last ``limit`` changes of one resource."""

    def __init__(self, limit: int, floor: int) -> None:
        self._changes: deque[Change] = deque()
        self._limit = limit
        self._dropped = 0
        self._waiting: set[asyncio.Future[None]] = set()
        self.floor = floor

    def append(self, change: Change) -> None:
        """Adds the newest change and wakes all who wait for it."""
        self._changes.append(change)
        if len(self._changes) > self._limit:
            self.floor = self._changes.popleft().revision
            self._dropped += 1
        self.wake()

    def wake(self) -> None:
        """Wakes every watcher that waits."""
        waiting, self._waiting = self._waiting, set()
        for future in waiting:
            if not future.done():
                future.set_result(None)

    def place_after(self, revision: int) -> int:
        """The place of the first change after ``revision``. Raises ``TooOldError``."""
        if revision < self.floor:
            raise TooOldError(self.floor)
        newer = sum(1 for _ in self.backwards(revision))
        return self._dropped + len(self._changes) - newer

    def since(self, place: int) -> list[Change]:
        """All changes from ``place`` on; the next place is ``place`` plus their number. Raises ``TooOldError``."""
        if place < self._dropped:
            raise TooOldError(self.floor)
        return list(islice(self._changes, place - self._dropped, None))

    def backwards(self, revision: int) -> Iterator[Change]:
        """All changes after ``revision``, the newest first. Raises ``TooOldError``."""
        if revision < self.floor:
            raise TooOldError(self.floor)
        for change in reversed(self._changes):
            if change.revision <= revision:
                return
            yield change

    async def wait(self, place: int, seconds: float) -> bool:
        """Waits until there is a change at ``place``; False where ``seconds`` passed first."""
        if place < self._dropped + len(self._changes):
            return True
        future = asyncio.get_running_loop().create_future()
        self._waiting.add(future)
        try:
            async with asyncio.timeout(seconds):
                await future
        except TimeoutError:
            return False
        finally:
            self._waiting.discard(future)
        return True
