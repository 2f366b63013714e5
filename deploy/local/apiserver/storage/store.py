"""All objects of the cluster, with one revision counter over them.

- Every change is one synchronous step: nothing can come between reading an object and replacing it, so a
  caller that does not await in between needs no lock. Give ``replace`` and ``delete`` the state that was read, and they
  check it.
- Revisions only grow, over restarts too. A deletion uses one.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable

from deploy.local.apiserver.apimachinery.jsonvalue import JsonObject, decode_object, encode
from deploy.local.apiserver.storage.database import ObjectDatabase
from deploy.local.apiserver.storage.history import (
    ChangeHistory,
    ChangeType,
    Key,
    StoredChange,
    StoredObject,
    event_line,
)

Place = tuple[str, str]
"""Namespace and name: the order of a list."""


class StaleError(Exception):
    """The object is no longer in the state that was read, or already there. ``actual`` is its state now."""

    def __init__(self, actual: StoredObject | None) -> None:
        super().__init__("the object has changed")
        self.actual = actual


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
        """Reads everything back from ``database``; each resource keeps its last ``history_limit`` changes."""
        self._database = database
        self._limit = history_limit
        self._collections: dict[str, _Collection] = {}
        self._observers: list[Callable[[StoredChange], None]] = []
        self.revision = database.revision()
        # The history begins with this process; changes before it are not known.
        self._began = self.revision
        for key, revision, raw in database.objects():
            self._collection(key.resource).put(StoredObject(key, revision, decode_object(raw), raw))

    def _collection(self, resource: str) -> _Collection:
        collection = self._collections.get(resource)
        if collection is None:
            collection = self._collections[resource] = _Collection(ChangeHistory(self._limit, self._began))
        return collection

    def observe(self, observer: Callable[[StoredChange], None]) -> None:
        """Calls ``observer`` with every later change, synchronously and in order. It must not raise or write."""
        self._observers.append(observer)

    def history(self, resource: str) -> ChangeHistory:
        """The recent changes of a resource."""
        return self._collection(resource).history

    def wake_all(self) -> None:
        """Lets every watcher look again, for instance to notice that the server is closing."""
        for collection in self._collections.values():
            collection.history.wake()

    def resources(self) -> Iterable[str]:
        """Every resource of which there are objects."""
        return [name for name, collection in self._collections.items() if collection.objects]

    def get(self, key: Key) -> StoredObject | None:
        """The object at ``key``, if there is one."""
        return self._collection(key.resource).objects.get((key.namespace, key.name))

    def objects(self, resource: str, namespace: str = "") -> list[StoredObject]:
        """All objects of a resource in the order of namespace and name; ``""`` is every namespace."""
        collection = self._collection(resource)
        if not namespace:
            return [collection.objects[place] for place in collection.order]
        first = bisect_left(collection.order, (namespace, ""))
        # No name contains a NUL, so this is where the namespace ends in the order.
        last = bisect_left(collection.order, (namespace + "\0", ""))
        return [collection.objects[place] for place in collection.order[first:last]]

    def list_at(self, resource: str, namespace: str, revision: int) -> list[StoredObject]:
        """The list as it was at ``revision``. Raises ``TooOldError`` if the history is too short."""
        by_place = {(stored.key.namespace, stored.key.name): stored for stored in self.objects(resource, namespace)}
        # Rebuilt backwards from now: each change knows what it replaced.
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
        """Stores a new object. Raises ``StaleError`` if one is there."""
        return self._write(key, body, None)

    def replace(self, before: StoredObject, body: JsonObject) -> StoredObject:
        """Stores the next state of an object. Raises ``StaleError`` if ``before`` is not its newest state."""
        return self._write(before.key, body, before)

    def _write(self, key: Key, body: JsonObject, before: StoredObject | None) -> StoredObject:
        self._check(key, before)
        now = self._next(key, body)
        # The database comes before memory, and both before watchers: nobody must see a change that is then lost.
        self._database.put(key, now.revision, now.raw)
        self.revision = now.revision
        self._collection(key.resource).put(now)
        self._tell(ChangeType.MODIFIED if before else ChangeType.ADDED, now, before)
        return now

    def delete(self, before: StoredObject, last: JsonObject | None = None) -> StoredObject:
        """Ends an object, with ``last`` as its last state if that differs from ``before``; returns that state.

        Raises ``StaleError`` if ``before`` is not its newest state.
        """
        self._check(before.key, before)
        now = self._next(before.key, before.body if last is None else last)
        self._database.drop(before.key, now.revision)
        self.revision = now.revision
        self._collection(before.key.resource).remove(before.key)
        self._tell(ChangeType.DELETED, now, before)
        return now

    def _check(self, key: Key, expected: StoredObject | None) -> None:
        actual = self.get(key)
        # Compared by identity, since every write makes a new object.
        if actual is not expected:
            raise StaleError(actual)

    def _next(self, key: Key, body: JsonObject) -> StoredObject:
        revision = self.revision + 1
        stamped = {**body, "metadata": {**body["metadata"], "resourceVersion": str(revision)}}
        return StoredObject(key, revision, stamped, encode(stamped))

    def _tell(self, kind: ChangeType, now: StoredObject, before: StoredObject | None) -> None:
        # The text of the event is made here, once for all watchers.
        change = StoredChange(kind, now, before, event_line(kind, now.raw))
        self._collection(now.key.resource).history.append(change)
        for observer in self._observers:
            observer(change)

    def close(self) -> None:
        """Closes the database; nothing may be written afterwards."""
        self._database.close()
