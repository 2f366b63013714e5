"""A cache of all objects of one kind, filled by list and watch; calls its listeners with every difference.

Listeners only take notes (mark a key as dirty); work happens elsewhere. They run in order, never concurrently. An
unreadable object keeps its last readable state until it is deleted or readable again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from deploy.kube.client import ApiClient
from protocol.backoff import Backoff, Retries
from protocol.kubernetes.api import ApiRefusedError, ApiUnknownError
from protocol.kubernetes.cursor import Cursor, WatchTimes
from protocol.kubernetes.objects import Json, name_of, number
from protocol.kubernetes.pages import Unreadable, WatchEvent
from protocol.kubernetes.refusals import heeded
from protocol.kubernetes.resources import Resource
from protocol.messages import ObjectName
from protocol.runtime.clock import Clock
from protocol.units import Seconds

_log = logging.getLogger(__name__)

_BACKOFF: Final = Backoff(Seconds(0.2), Seconds(5.0))
_HEALTHY: Final = Seconds(15.0)
_WATCH_SPAN: Final = Seconds(20.0)
"""The server is asked to end a watch after this long, or up to twice as long, so that a dead connection shows soon."""
_FAILURES_UNTIL_LISTED: Final = 3
"""After this many failures in a row, the version to resume from may be the cause: the next watch begins with a list."""


@dataclass(frozen=True, slots=True)
class ObjectChange:
    """A change of one object: ``old`` is None if it is new, ``new`` is None if it is gone."""

    name: ObjectName
    old: Json | None
    new: Json | None


Listener = Callable[[ObjectChange], None]


class Informer:
    """The objects of one kind by name. Run ``run`` in a task; wait for ``synced`` before trusting the cache."""

    def __init__(
        self, client: ApiClient, kind: Resource, clock: Clock, part_of: Callable[[Json], Json] | None = None
    ) -> None:
        """``part_of`` returns the part of each object to cache, for callers that need little of many."""
        self._part_of = part_of
        self._client = client
        self._kind = kind
        self._clock = clock
        self._cursor = Cursor()
        self._objects: dict[ObjectName, Json] = {}
        self._unreadable: dict[ObjectName, Unreadable] = {}
        self._listeners: list[Listener] = []
        self._is_doubted = False
        self.synced = asyncio.Event()

    @property
    def objects(self) -> Mapping[ObjectName, Json]:
        """The objects in the cache. Do not change them."""
        return self._objects

    @property
    def unreadable(self) -> Mapping[ObjectName, Unreadable]:
        """The objects whose current state cannot be read."""
        return self._unreadable

    def get(self, name: ObjectName) -> Json | None:
        """The object of that name, or None."""
        return self._objects.get(name)

    def listen(self, listener: Listener) -> None:
        """Calls ``listener`` with every later change."""
        self._listeners.append(listener)

    def doubt(self) -> None:
        """The store was restored: lists again once the watch has ended, which is within 40 s."""
        self._is_doubted = True

    async def run(self) -> None:
        """Lists and watches until cancelled; retries while the API server is unavailable."""
        retries = Retries(_BACKOFF, _HEALTHY)
        while True:
            began, retry_after = self._clock.now(), Seconds(0.0)
            try:
                await self._list_and_watch()
            except ApiRefusedError as error:
                retry_after = heeded(error.refusal.retry_after)
                self._cursor.refused(error.refusal)
            except ApiUnknownError as error:
                retry_after = heeded(error.retry_after)
                _log.info("the watch is resumed", extra={"resource": self._kind.plural, "reason": str(error)})
            pause = retries.failed(self._clock.jitter(), ran=Seconds(self._clock.now() - began))
            if retries.failures >= _FAILURES_UNTIL_LISTED:
                self._cursor = Cursor()
            await self._clock.sleep(Seconds(pause + retry_after))

    async def _list_and_watch(self) -> None:
        # A restored store is at an older version, and a watch from a version that it has not reached stays silent. Once
        # it has passed that version again, only ``doubt`` can tell.
        if self._cursor.must_list or self._is_doubted or await self._is_restored():
            await self.refresh()
        times = WatchTimes.spread(self._clock.jitter(), _WATCH_SPAN)
        async for event in self._client.watch(self._kind, self._cursor.version or "", times):
            self._take(event)
            self._cursor.take(event)

    async def _is_restored(self) -> bool:
        return number(await self._client.revision(self._kind)) < number(self._cursor.version)

    async def refresh(self) -> str:
        """Lists once and reports the differences; returns the version of the list. Raises as ``ApiClient.list``."""
        # Cleared before the request, so that a doubt that arrives during the list is not lost.
        self._is_doubted = False
        page = await self._client.list(self._kind)
        listed = {name_of(obj): obj for obj in page.objects}
        unreadable = {bad.name: bad for bad in page.unreadable}
        # Deletions that no watch has seen.
        for gone in (self._objects.keys() | self._unreadable.keys()) - listed.keys() - unreadable.keys():
            self._store(gone, None)
        for name, obj in listed.items():
            self._store(name, obj)
        for bad in unreadable.values():
            self._leave_out(bad)
        self._cursor.listed(page.version)
        self.synced.set()
        return page.version

    def _take(self, event: WatchEvent) -> None:
        if event.type == "BOOKMARK":
            return
        if event.type == "DELETED":
            self._store(event.name, None)
        elif event.unreadable is not None:
            self._leave_out(event.unreadable)
        else:
            self._store(event.name, event.object)

    def _leave_out(self, bad: Unreadable) -> None:
        before = self._unreadable.get(bad.name)
        self._unreadable[bad.name] = bad
        # Logged once for each version: every re-list meets the same object again.
        if before is None or before.version != bad.version:
            fields = {"resource": self._kind.plural, "object": str(bad.name), "uid": bad.uid, "reason": bad.reason}
            _log.warning("an object cannot be read and is left as it was", extra=fields)

    def _store(self, name: ObjectName, new: Json | None) -> None:
        self._unreadable.pop(name, None)
        old = self._objects.get(name)
        # Before the comparison, so that changes in fields that are not cached reach no listener.
        if new is not None and self._part_of is not None:
            new = self._part_of(new)
        if new is None:
            self._objects.pop(name, None)
        else:
            self._objects[name] = new
        # A re-list delivers every object, mostly unchanged.
        if old != new:
            for listener in self._listeners:
                listener(ObjectChange(name, old, new))
