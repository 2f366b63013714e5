"""Watches: the changes of a collection since a revision, as lines of JSON."""

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
"""Converts a stored object to the form that the client requested."""

DEFAULT_WATCH_TIMEOUT: Final = 3600.0
"""Default timeout of a watch, in seconds."""

_INITIAL_END: Final = "k8s.io/initial-events-end"


@dataclass(frozen=True, slots=True)
class WatchOptions:
    """Options of a watch. ``initial`` None: it depends on the resourceVersion. Times are in seconds."""

    labels: str = ""
    fields: str = ""
    resource_version: str = ""
    bookmarks: bool = False
    initial: bool | None = None
    timeout: float = DEFAULT_WATCH_TIMEOUT
    bookmark_every: float = 30.0


class Watch:
    """One watch. ``shape`` None: objects as stored, in an encoding that all such watches share."""

    def __init__(self, store: ObjectStore, target: RequestTarget, options: WatchOptions, shape: Shape | None) -> None:
        """Raise a 400 if a selector or the resourceVersion is invalid."""
        self._store = store
        self._target = target
        self._options = options
        self._shape = shape
        self._matches: Matcher | None = selection(target, options.labels, options.fields)
        self._pin = pinned(options.fields)
        self._start = revision_of(options.resource_version)
        self._history = store.history(target.resource.key)

    async def lines(self, closing: asyncio.Event) -> AsyncIterator[bytes]:
        """The events, several lines at a time; ends after the timeout, an error, or when ``closing`` is set."""
        try:
            if self._start == 0 if self._options.initial is None else self._options.initial:
                # Before anything is sent, so that changes made meanwhile follow.
                place = self._history.position_after(self._store.revision)
                yield b"".join(self._initial())
            else:
                place = self._history.position_after(self._start_revision())
            async for chunk in self._follow(place, closing):
                yield chunk
        # A 410 ends the stream; the client lists again.
        except TooOldError as error:
            yield encode({"type": "ERROR", "object": too_old(self._start, error.floor).status()}) + b"\n"

    def _start_revision(self) -> int:
        """The revision to start after. A future one belongs to another history and counts as too old."""
        if self._start > self._store.revision:
            raise TooOldError(self._store.revision)
        return self._start or self._store.revision

    def _initial(self) -> Iterable[bytes]:
        for stored in candidates(self._store, self._target, self._pin):
            if self._matches is None or self._matches(stored.body):
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
            # No await until the bookmark is encoded: it must not cover changes that are not in this chunk.
            changes = self._history.since(place)
            place += len(changes)
            chunk = b"".join(filter(None, map(self._event_bytes, changes)))
            # A bookmark tells the client that it has all changes up to here. Sent if nothing happens, and at the end.
            if self._options.bookmarks and (is_quiet or is_over):
                chunk += self._bookmark({})
            if chunk:
                yield chunk

    def _event_bytes(self, change: StoredChange) -> bytes | None:
        """The event of a change for this watch; None if it is not selected."""
        namespace = self._target.namespace
        if namespace and change.now.key.namespace != namespace:
            return None
        if self._matches is None:
            # Watches without selectors share the encoding made with the change.
            return change.line if self._shape is None else self._line(change.type, change.now.body)
        # An object that begins to match the selectors is ADDED, one that no longer matches is DELETED.
        before = change.before is not None and self._matches(change.before.body)
        now = change.type is not ChangeType.DELETED and self._matches(change.now.body)
        if not before and not now:
            return None
        if before and not now and change.type is not ChangeType.DELETED:
            return self._line(ChangeType.DELETED, _last_match(change))
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


def _last_match(change: StoredChange) -> JsonObject:
    """The last matching state, at the revision at which the object no longer matched."""
    last: StoredObject = change.before or change.now
    return {**last.body, "metadata": {**last.body["metadata"], "resourceVersion": str(change.revision)}}
