"""A cache of all objects of one kind, filled by list and watch. Listeners are called with every change.

Listeners should only enqueue keys. They run in order, never concurrently. An object that cannot be decoded keeps its
last decoded state until it is deleted or can be decoded again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from deploy.kube.client import ApiClient
from protocol.backoff import Backoff, Retries
from protocol.kubernetes.api import ApiError, ApiRefusedError, readable_error
from protocol.kubernetes.objects import Json, JsonObject
from protocol.kubernetes.pages import Unreadable
from protocol.kubernetes.resources import Resource
from protocol.messages import ObjectName
from protocol.runtime.clock import Clock
from protocol.runtime.kubernetes.watches.informer import FactInformer
from protocol.runtime.kubernetes.watches.kinds import FactChange, Kind
from protocol.units import Seconds

_log = logging.getLogger(__name__)

# Slower than the scheduler's, because every node has these caches and they are not time-critical.
_BACKOFF: Final = Backoff(Seconds(0.2), Seconds(5.0))

ObjectChange = FactChange[Json]
Listener = Callable[[ObjectChange], None]


class Informer:
    """The objects of one kind by name. Run ``run`` in a task; wait for ``synced`` before trusting the cache."""

    def __init__(
        self, client: ApiClient, kind: Resource, clock: Clock, trim: Callable[[JsonObject], Json] | None = None
    ) -> None:
        """``trim`` returns the part of an object to cache, to save memory."""
        watched: Kind[Json] = Kind(kind, trim or dict)
        self._client = client
        self._clock = clock
        self._facts: FactInformer[Json] = FactInformer(watched, self._changed, WatchLog(), retries=Retries(_BACKOFF))
        self._listeners: list[Listener] = []
        self.synced = asyncio.Event()

    @property
    def objects(self) -> Mapping[ObjectName, Json]:
        """The cached objects. Do not modify them."""
        return self._facts.facts

    @property
    def unreadable(self) -> Mapping[ObjectName, Unreadable]:
        """The objects whose current state cannot be decoded."""
        return self._facts.unreadable

    def get(self, name: ObjectName) -> Json | None:
        """The object with this name, or None."""
        return self._facts.facts.get(name)

    def listen(self, listener: Listener) -> None:
        """Call ``listener`` with every later change."""
        self._listeners.append(listener)

    def learn(self, written: Json) -> None:
        """Update the cache with an object that a write returned, so that the writer does not act on an older state."""
        self._facts.learn(written)

    def relist(self) -> None:
        """List again immediately: the API server's store was restored from a backup."""
        self._facts.read_again()

    async def catch_up(self) -> None:
        """Return once a list that started after this call is complete: it includes all earlier writes.

        ``run`` must be running.
        """
        await self._facts.refresh()

    async def run(self) -> None:
        """List and watch until cancelled. Retries while the API server is unavailable."""
        await self._facts.run(self._client.api, self._clock, self.synced.set)

    async def refresh(self) -> str:
        """List once, call listeners with the changes, and return the list's resourceVersion. Raises
        like ``ApiClient.list``.
        """
        try:
            await self._facts.list_once(self._client.api)
        except ApiRefusedError as error:
            raise readable_error(error.refusal) from None
        self.synced.set()
        return str(self._facts.newest)

    def _changed(self, change: ObjectChange) -> None:
        for listener in self._listeners:
            listener(change)


@dataclass(frozen=True, slots=True)
class WatchLog:
    """A ``WatchReport`` for programs without watch metrics."""

    def watch_delivered(self, kind: str) -> None:
        """Nothing to log."""

    def watch_listed(self, kind: str, count: int) -> None:
        """Nothing to log."""

    def watch_failed(self, kind: str, error: ApiError) -> None:
        """Log the reason."""
        _log.info("watch failed; resuming", extra={"resource": kind, "reason": str(error)})

    def watch_missing(self, kind: str) -> None:
        """Never called: no watched resource is optional."""

    def watch_restored(self, kind: str) -> None:
        """Nothing to log: the holder of the Lease logs it."""

    def object_unreadable(self, kind: str, unreadable: Unreadable) -> None:
        """Log the object and the reason."""
        fields = {"resource": kind, "object": str(unreadable.name), "uid": unreadable.uid, "reason": unreadable.reason}
        _log.warning("cannot decode object; keeping its last state", extra=fields)

    def unreadable_objects(self, kind: str, count: int) -> None:
        """Nothing to log."""
