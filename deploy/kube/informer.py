"""A cache of all objects of one kind, kept by list and watch; tells its listeners of every difference.

Rules that hold here:

- Listeners hear differences between what the cache held and what it holds now, also across a broken watch: a re-list
  reports what appeared, changed and vanished in between. They are called in order, never concurrently.
- Listeners only take notes (mark a key as dirty); work happens elsewhere.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from deploy.kube.client import ApiClient, ApiError, ApiUnavailableError
from protocol.kubernetes.objects import Json, items, name_of, text
from protocol.kubernetes.resources import Resource
from protocol.messages import ObjectName
from protocol.runtime.clock import Clock
from protocol.units import Seconds

_FIRST_PAUSE: Final = 0.2
_LONGEST_PAUSE: Final = 5.0
_GONE: Final = 410


@dataclass(frozen=True, slots=True)
class Change:
    """What happened to one object: ``old`` is None where it is new, ``new`` where it is gone."""

    name: ObjectName
    old: Json | None
    new: Json | None


Listener = Callable[[Change], None]


class Informer:
    """The objects of one kind by name. Run ``run`` in a task; wait for ``synced`` before trusting the cache."""

    def __init__(self, client: ApiClient, kind: Resource, clock: Clock) -> None:
        self._client = client
        self._kind = kind
        self._clock = clock
        self._objects: dict[ObjectName, Json] = {}
        self._listeners: list[Listener] = []
        self.synced = asyncio.Event()

    @property
    def objects(self) -> Mapping[ObjectName, Json]:
        """What the cache holds now. Do not change it."""
        return self._objects

    def get(self, name: ObjectName) -> Json | None:
        """The object of that name, or None."""
        return self._objects.get(name)

    def listen(self, listener: Listener) -> None:
        """Calls ``listener`` with every later change."""
        self._listeners.append(listener)

    async def run(self) -> None:
        """Lists and watches until cancelled; an API server that is away is waited for."""
        pause = _FIRST_PAUSE
        while True:
            try:
                version = await self.refresh()
                pause = _FIRST_PAUSE
                await self._follow(version)
            except (ApiError, ApiUnavailableError):
                await self._clock.sleep(Seconds(pause))
                pause = min(pause * 2, _LONGEST_PAUSE)

    async def refresh(self) -> str:
        """Lists once and reports the differences; returns the version of the list. Raises as ``ApiClient.list``."""
        listed = await self._client.list(self._kind)
        found = {name_of(each): each for each in items(listed, "items")}
        for gone in self._objects.keys() - found.keys():
            self._store(gone, None)
        for name, each in found.items():
            self._store(name, each)
        self.synced.set()
        return text(listed, "metadata", "resourceVersion")

    async def _follow(self, version: str) -> None:
        """Watches, and watches on from where a watch ended; returns only when the server says: too old."""
        while True:
            try:
                async for event in self._client.watch(self._kind, version):
                    version = text(event.object, "metadata", "resourceVersion") or version
                    if event.type != "BOOKMARK":
                        self._store(name_of(event.object), None if event.type == "DELETED" else event.object)
            except ApiError as error:
                if error.status == _GONE:
                    return
                raise

    def _store(self, name: ObjectName, new: Json | None) -> None:
        old = self._objects.get(name)
        if new is None:
            self._objects.pop(name, None)
        else:
            self._objects[name] = new
        if old != new:
            for listener in self._listeners:
                listener(Change(name, old, new))
