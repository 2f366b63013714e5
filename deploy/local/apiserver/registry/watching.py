"""Watches: the changes of a collection from a revision on, as lines of JSON."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass
from typing import Final

from deploy.local.apiserver.apimachinery.errors import too_old
from deploy.local.apiserver.apimachinery.jsonvalue import JsonObject, encode
from deploy.local.apiserver.apimachinery.selectors import Matcher, pinned
from deploy.local.apiserver.registry.api import RequestTarget
from deploy.local.apiserver.registry.listing import candidates, revision_of, selection
from deploy.local.apiserver.storage.store import ChangeType, ObjectStore, StoredChange, StoredObject, TooOldError

Shape = Callable[[JsonObject], JsonObject]
"""Turns a stored object into the form that this client asked for."""

LONGEST_WATCH: Final = 3600.0
"""Seconds that a watch without a time-out lasts."""

_INITIAL_END: Final = "k8s.io/initial-events-end"


@dataclass(frozen=True, slots=True)
class WatchOptions:
    """Options of a watch. ``initial`` None leaves it to the resourceVersion; times are in seconds."""

    labels: str = ""
    fields: str = ""
    resource_version: str = ""
    bookmarks: bool = False
    initial: bool | None = None
    timeout: float = LONGEST_WATCH
    bookmark_every: float = 30.0


class Watch:
    """One watcher. ``shape`` None sends objects as they are stored, in the text that all such watchers share."""

    def __init__(self, store: ObjectStore, target: RequestTarget, options: WatchOptions, shape: Shape | None) -> None:
        """Raises a 400 for selectors or a resourceVersion that cannot be read."""
        self._store = store
        self._target = target
        self._options = options
        self._shape = shape
        self._wanted: Matcher | None = selection(target, options.labels, options.fields)
        self._pin = pinned(options.fields)
        self._start = revision_of(options.resource_version)
        self._history = store.history(target.resource.key)

    async def lines(self, closing: asyncio.Event) -> AsyncIterator[bytes]:
        """The events, several lines at a time; ends at the time-out, at an error, or once ``closing`` is set."""
        try:
            if self._start == 0 if self._options.initial is None else self._options.initial:
                # Taken before anything is sent, so that changes during the sending follow.
                place = self._history.place_after(self._store.revision)
                yield b"".join(self._initial())
            else:
                place = self._history.place_after(self._checked_start())
            async for chunk in self._follow(place, closing):
                yield chunk
        # The stream ends with a 410, and the client lists again.
        except TooOldError as error:
            yield encode({"type": "ERROR", "object": too_old(self._start, error.floor).status()}) + b"\n"

    def _checked_start(self) -> int:
        """The revision to start after. One in the future is from another history and counts as too old."""
        if self._start > self._store.revision:
            raise TooOldError(self._store.revision)
        return self._start or self._store.revision

    def _initial(self) -> Iterable[bytes]:
        for stored in candidates(self._store, self._target, self._pin):
            if self._wanted is None or self._wanted(stored.body):
                yield self._line(ChangeType.ADDED, stored.body)
        if self._options.initial and self._options.bookmarks:
            yield self._bookmark({_INITIAL_END: "true"})

    async def _follow(self, place: int, closing: asyncio.Event) -> AsyncIterator[bytes]:
        clock = asyncio.get_running_loop().time
        end = clock() + self._options.timeout
        is_over = is_quiet = False
        while not is_over:
            if (left := end - clock()) > 0 and not closing.is_set():
                next_place = await self._history.wait(place, min(left, self._options.bookmark_every), self._pin)
                is_quiet, place = next_place is None, self._history.end if next_place is None else next_place
            is_over = closing.is_set() or clock() >= end
            # No await until the bookmark is made: it must not cover changes that are not in this chunk.
            changes = self._history.since(place)
            place += len(changes)
            chunk = b"".join(filter(None, map(self._seen, changes)))
            # A bookmark says that everything up to here has been seen. It is sent in quiet times, and before a stream
            # ends by itself.
            if self._options.bookmarks and (is_quiet or is_over):
                chunk += self._bookmark({})
            if chunk:
                yield chunk

    def _seen(self, change: StoredChange) -> bytes | None:
        """The event that this watcher gets for a change; None if it is out of its scope."""
        namespace = self._target.namespace
        if namespace and change.now.key.namespace != namespace:
            return None
        if self._wanted is None:
            # Watchers without selectors share the text that was made with the change.
            return change.line if self._shape is None else self._line(change.type, change.now.body)
        # A watcher sees only its selection: an object that begins to match is ADDED, one that ceases to is DELETED.
        before = change.before is not None and self._wanted(change.before.body)
        now = change.type is not ChangeType.DELETED and self._wanted(change.now.body)
        if not before and not now:
            return None
        if before and not now and change.type is not ChangeType.DELETED:
            return self._line(ChangeType.DELETED, _as_it_was(change))
        kind = ChangeType.ADDED if not before else change.type
        unchanged = self._shape is None and kind is change.type
        return change.line if unchanged else self._line(kind, change.now.body)

    def _line(self, kind: ChangeType, body: JsonObject) -> bytes:
        shaped = body if self._shape is None else self._shape(body)
        return encode({"type": kind.value, "object": shaped}) + b"\n"

    def _bookmark(self, annotations: JsonObject) -> bytes:
        resource = self._target.resource
        meta: JsonObject = {"resourceVersion": str(self._store.revision), "creationTimestamp": None}
        if annotations:
            meta["annotations"] = annotations
        bookmark: JsonObject = {"kind": resource.kind, "apiVersion": resource.api_version, "metadata": meta}
        if self._shape is not None:
            bookmark = self._shape(bookmark)
        return encode({"type": "BOOKMARK", "object": bookmark}) + b"\n"


def _as_it_was(change: StoredChange) -> JsonObject:
    """The last state that still matched, at the revision at which it ceased to."""
    last: StoredObject = change.before or change.now
    return {**last.body, "metadata": {**last.body["metadata"], "resourceVersion": str(change.revision)}}
