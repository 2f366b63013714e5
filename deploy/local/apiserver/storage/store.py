"""All objects of the cluster with one revision counter, and the recent history of each resource.

- Every change is synchronous, so a caller that does not await between reading and replacing an object needs no lock.
  ``replace`` and ``delete`` check the state that the caller read.
- Revisions only increase, across restarts too. A deletion uses one.
- Changes are ordered by revision and immutable. An event is encoded once for all watchers.
- A watcher is a position in the history, not a queue: a slow one costs nothing, and gets a 410 when its position has
  been dropped.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from itertools import islice
from typing import Final

from deploy.local.apiserver.apimachinery.jsonvalue import JsonObject, decode_object, encode, text_at
from deploy.local.apiserver.apimachinery.selectors import Pin
from deploy.local.apiserver.storage.database import Key, ObjectDatabase


@dataclass(frozen=True, slots=True)
class StoredObject:
    """One state of one object. ``raw`` is its JSON text; do not change ``body``."""

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
    """One change. ``now`` is the last state of a deleted object, at the revision of its deletion."""

    type: ChangeType
    now: StoredObject
    before: StoredObject | None
    line: bytes

    @property
    def revision(self) -> int:
        """The revision of this change."""
        return self.now.revision


def event_line(kind: ChangeType, raw: bytes) -> bytes:
    """A watch event, encoded."""
    return b'{"type":"%s","object":%s}\n' % (kind.encode(), raw)


_ANY: Final[Pin] = ("", "")
"""The pin of a watcher of all objects."""


class TooOldError(Exception):
    """The history no longer has the requested revision. ``floor`` is the oldest available one."""

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
        # Changes up to this revision may have been dropped.
        self.floor = floor

    @property
    def end(self) -> int:
        """The position of the next change."""
        return self._dropped + len(self._changes)

    def append(self, change: StoredChange) -> None:
        """Append the newest change and wake the watchers that wait for it."""
        place = self.end
        self._changes.append(change)
        if len(self._changes) > self._limit:
            self.floor = self._changes.popleft().revision
            self._dropped += 1
        # A change wakes only the watchers that pin its value: one of a thousand watchers of single objects.
        for path, by_value in self._waiting.items():
            for value in _values(change, path):
                _resolve(by_value.get(value, ()), place)

    def wake(self) -> None:
        """Wake every waiting watcher."""
        for by_value in self._waiting.values():
            for waiting in by_value.values():
                _resolve(waiting, self.end)

    def position_after(self, revision: int) -> int:
        """The position of the first change after ``revision``. Raises ``TooOldError``."""
        if revision < self.floor:
            raise TooOldError(self.floor)
        # Counted from the end, because most watches begin near it.
        newer = sum(1 for _ in self.backwards(revision))
        return self.end - newer

    def since(self, place: int) -> list[StoredChange]:
        """All changes from position ``place`` on. Raises ``TooOldError``."""
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
        """Wait for a change, at position ``place`` or later, that may concern a watcher of ``pin`` (None: all objects).

        Returns its position; None after a timeout of ``seconds``.
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
            # Every watched object can have its own pin, so empty entries would accumulate.
            if not by_value[value]:
                del by_value[value]


def _values(change: StoredChange, path: str) -> set[str]:
    # Both states: a watcher of the earlier value must get the change away from it.
    states = (change.now,) if change.before is None else (change.now, change.before)
    return {text_at(state.body, path) for state in states} if path else {""}


def _resolve(waiting: Iterable[asyncio.Future[int]], place: int) -> None:
    for future in waiting:
        # It may be done: by an earlier change before its watcher has run, or because the watcher was cancelled.
        if not future.done():
            future.set_result(place)


Place = tuple[str, str]
"""Namespace and name, the sort order of lists."""


class StaleError(Exception):
    """The object has changed since it was read, or already exists."""


class _Collection:
    """The objects of one resource, in order, with their history."""

    def __init__(self, history: ChangeHistory) -> None:
        self.objects: dict[Place, StoredObject] = {}
        self.order: list[Place] = []
        self.history = history

    def put(self, stored: StoredObject) -> None:
        place = (stored.key.namespace, stored.key.name)
        if place not in self.objects:
            insort(self.order, place)
        self.objects[place] = stored

    def remove(self, key: Key) -> None:
        place = (key.namespace, key.name)
        del self.objects[place]
        del self.order[bisect_left(self.order, place)]


class ObjectStore:
    """The state of the API server."""

    def __init__(self, database: ObjectDatabase, history_limit: int) -> None:
        """Load all objects from ``database``; each resource keeps its last ``history_limit`` changes."""
        self._database = database
        self._limit = history_limit
        self._collections: dict[str, _Collection] = {}
        self._observers: list[Callable[[StoredChange], None]] = []
        self.revision = database.revision()
        # The history begins with this process.
        self._began = self.revision
        for key, revision, raw in database.objects():
            self._collection(key.resource).put(StoredObject(key, revision, decode_object(raw), raw))

    def _collection(self, resource: str) -> _Collection:
        collection = self._collections.get(resource)
        if collection is None:
            collection = self._collections[resource] = _Collection(ChangeHistory(self._limit, self._began))
        return collection

    def observe(self, observer: Callable[[StoredChange], None]) -> None:
        """Call ``observer`` with every later change, synchronously and in order. It must not raise or write."""
        self._observers.append(observer)

    def history(self, resource: str) -> ChangeHistory:
        """The recent changes of a resource."""
        return self._collection(resource).history

    def wake_all(self) -> None:
        """Wake every watcher, for example to end them when the server closes."""
        for collection in self._collections.values():
            collection.history.wake()

    def resources(self) -> Iterable[str]:
        """Every resource with objects."""
        return [name for name, collection in self._collections.items() if collection.objects]

    def get(self, key: Key) -> StoredObject | None:
        """The object at ``key``, if there is one."""
        return self._collection(key.resource).objects.get((key.namespace, key.name))

    def objects(self, resource: str, namespace: str = "") -> list[StoredObject]:
        """The objects of a resource, by default in all namespaces, sorted by namespace and name."""
        collection = self._collection(resource)
        if not namespace:
            return [collection.objects[place] for place in collection.order]
        first = bisect_left(collection.order, (namespace, ""))
        # Names contain no NUL, so this sorts directly after the namespace.
        last = bisect_left(collection.order, (namespace + "\0", ""))
        return [collection.objects[place] for place in collection.order[first:last]]

    def list_at(self, resource: str, namespace: str, revision: int) -> list[StoredObject]:
        """The objects as of ``revision``. Raises ``TooOldError``."""
        by_place = {(stored.key.namespace, stored.key.name): stored for stored in self.objects(resource, namespace)}
        # Undo the changes since then: each has the state that it replaced.
        for change in self.history(resource).backwards(revision):
            key = change.now.key
            if namespace and key.namespace != namespace:
                continue
            if change.before is None:
                by_place.pop((key.namespace, key.name), None)
            else:
                by_place[(key.namespace, key.name)] = change.before
        return [by_place[place] for place in sorted(by_place)]

    def create(self, key: Key, body: JsonObject) -> StoredObject:
        """Store a new object. Raises ``StaleError`` if it exists."""
        return self._write(key, body, None)

    def replace(self, before: StoredObject, body: JsonObject) -> StoredObject:
        """Store the next state of an object. Raises ``StaleError`` if ``before`` is not its newest state."""
        return self._write(before.key, body, before)

    def _write(self, key: Key, body: JsonObject, before: StoredObject | None) -> StoredObject:
        self._check(key, before)
        now = self._next(key, body)
        # Database first, then memory, then watchers: no one must see a change that is not stored.
        self._database.put(key, now.revision, now.raw)
        self.revision = now.revision
        self._collection(key.resource).put(now)
        self._publish(ChangeType.MODIFIED if before else ChangeType.ADDED, now, before)
        return now

    def delete(self, before: StoredObject, last: JsonObject | None = None) -> StoredObject:
        """Delete an object; return its last state, which is ``last`` or, if None, ``before``, with a new revision.

        Raises ``StaleError`` if ``before`` is not its newest state.
        """
        self._check(before.key, before)
        now = self._next(before.key, before.body if last is None else last)
        self._database.drop(before.key, now.revision)
        self.revision = now.revision
        self._collection(before.key.resource).remove(before.key)
        self._publish(ChangeType.DELETED, now, before)
        return now

    def _check(self, key: Key, expected: StoredObject | None) -> None:
        # By identity: every write makes a new object.
        if self.get(key) is not expected:
            raise StaleError("the object has changed")

    def _next(self, key: Key, body: JsonObject) -> StoredObject:
        revision = self.revision + 1
        stamped = {**body, "metadata": {**body["metadata"], "resourceVersion": str(revision)}}
        return StoredObject(key, revision, stamped, encode(stamped))

    def _publish(self, kind: ChangeType, now: StoredObject, before: StoredObject | None) -> None:
        # Encoded here, once for all watchers.
        change = StoredChange(kind, now, before, event_line(kind, now.raw))
        self._collection(now.key.resource).history.append(change)
        for observer in self._observers:
            observer(change)

    def close(self) -> None:
        """Close the database; do not write afterwards."""
        self._database.close()
