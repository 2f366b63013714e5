"""The recent past of one resource: what watches read, and what lists of an earlier revision are rebuilt from.

- Changes are in the order of their revisions and never altered. The text of an event is made once for all watchers.
- A watcher is a place in the history, not a queue: a slow one costs nothing and, when its place has been dropped,
  learns that it is too late (410).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from itertools import islice
from typing import Final, NamedTuple

from deploy.local.apiserver.apimachinery.jsonvalue import JsonObject, text_at
from deploy.local.apiserver.apimachinery.selectors import Pin


class Key(NamedTuple):
    """Key of an object: resource (``plural.group``), namespace (``""`` if the resource has none) and name."""

    resource: str
    namespace: str
    name: str


@dataclass(frozen=True, slots=True)
class StoredObject:
    """One state of one object. ``raw`` is its JSON text; ``body`` must not be changed."""

    key: Key
    revision: int
    body: JsonObject
    raw: bytes


class ChangeType(StrEnum):
    """Type of a change, as in watch events."""

    ADDED = "ADDED"
    MODIFIED = "MODIFIED"
    DELETED = "DELETED"


@dataclass(frozen=True, slots=True)
class StoredChange:
    """One change of the history. ``now`` is the last state of a deleted object, at the revision of its end."""

    type: ChangeType
    now: StoredObject
    before: StoredObject | None
    line: bytes

    @property
    def revision(self) -> int:
        """The revision that this change made."""
        return self.now.revision


def event_line(kind: ChangeType, raw: bytes) -> bytes:
    """The text of a watch event."""
    return b'{"type":"%s","object":%s}\n' % (kind.encode(), raw)


_ANY: Final[Pin] = ("", "")
"""What a watcher of everything waits for."""


class TooOldError(Exception):
    """The history no longer reaches back so far. ``floor`` is the oldest revision that can be asked for."""

    def __init__(self, floor: int) -> None:
        super().__init__(f"history begins after revision {floor}")
        self.floor = floor


class ChangeHistory:
    """The last ``limit`` changes of one resource."""

    def __init__(self, limit: int, floor: int) -> None:
        self._changes: deque[StoredChange] = deque()
        self._limit = limit
        self._dropped = 0
        self._waiting: dict[str, dict[str, set[asyncio.Future[int]]]] = {}
        # Changes up to this revision may have been dropped; all later ones are here.
        self.floor = floor

    @property
    def end(self) -> int:
        """The place of the next change."""
        return self._dropped + len(self._changes)

    def append(self, change: StoredChange) -> None:
        """Adds the newest change and wakes all who wait for it."""
        place = self.end
        self._changes.append(change)
        if len(self._changes) > self._limit:
            self.floor = self._changes.popleft().revision
            self._dropped += 1
        # Only changes with the value that it pins wake a watcher: with a thousand watchers of one object each, a change
        # wakes one.
        for path, by_value in self._waiting.items():
            for value in _values(change, path):
                _resolve(by_value.get(value, ()), place)

    def wake(self) -> None:
        """Wakes every watcher that waits."""
        for by_value in self._waiting.values():
            for waiting in by_value.values():
                _resolve(waiting, self.end)

    def place_after(self, revision: int) -> int:
        """The place of the first change after ``revision``. Raises ``TooOldError``."""
        if revision < self.floor:
            raise TooOldError(self.floor)
        # Counted from the end, because watches begin near the newest change.
        newer = sum(1 for _ in self.backwards(revision))
        return self.end - newer

    def since(self, place: int) -> list[StoredChange]:
        """All changes from ``place`` on; the next place is ``place`` plus their number. Raises ``TooOldError``."""
        if place < self._dropped:
            raise TooOldError(self.floor)
        return list(islice(self._changes, place - self._dropped, None))

    def backwards(self, revision: int) -> Iterator[StoredChange]:
        """All changes after ``revision``, the newest first. Raises ``TooOldError``."""
        if revision < self.floor:
            raise TooOldError(self.floor)
        for change in reversed(self._changes):
            if change.revision <= revision:
                return
            yield change

    async def wait(self, place: int, seconds: float, pin: Pin | None = None) -> int | None:
        """The place of the first change from ``place`` on that may matter to a watcher of ``pin`` (None: of
        everything); None if ``seconds`` passed first.
        """
        if place < self.end:
            return place
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        path, value = pin or _ANY
        by_value = self._waiting.setdefault(path, {})
        by_value.setdefault(value, set()).add(future)
        try:
            await asyncio.wait((future,), timeout=seconds)
            return future.result() if future.done() else None
        finally:
            by_value[value].discard(future)
            # Every object that is watched can have a pin of its own, so empty entries would pile up.
            if not by_value[value]:
                del by_value[value]


def _values(change: StoredChange, path: str) -> set[str]:
    # Both states count: a watcher of the earlier value must learn that the object no longer has it.
    states = (change.now,) if change.before is None else (change.now, change.before)
    return {text_at(state.body, path) for state in states} if path else {""}


def _resolve(waiting: Iterable[asyncio.Future[int]], place: int) -> None:
    for future in waiting:
        # Another change may come before the watcher has run, and a cancelled watcher leaves its future for a moment.
        if not future.done():
            future.set_result(place)
