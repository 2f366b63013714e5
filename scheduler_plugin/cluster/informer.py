"""One kind of object kept in step with the API: list, watch, resume, list again (level-triggered).

Rules that hold here:

- Objects are turned into facts at the door and only facts are kept. An object that cannot be read is reported and kept
  as it was known before, never guessed and never a reason to stop.
- What a watch missed, the next list tells: the difference between what was known and what is listed goes to the
  handler as if it had been watched. Losing an event therefore only delays.
- What was read on its own may be newer than what a watch or list says next: an older version of an object never
  replaces a newer one, and a list never removes what is younger than itself.
- After 410 the resource version is worthless: list again. After anything else, resume from the last version.
- A kind that a cluster may lack (404 for its list) counts as listed and empty, and is looked for now and then.
- No failure ends ``run``; consecutive failures wait longer, spread by chance.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, Generic, Never, Protocol, TypeVar

import msgspec

from protocol.messages import ObjectName
from protocol.units import Seconds
from scheduler_plugin.backoff import Backoff
from scheduler_plugin.clock import Clock
from scheduler_plugin.cluster.api import (
    ApiCall,
    ApiError,
    ApiRefusedError,
    ApiUnknownError,
    JsonObject,
    KubernetesApi,
)

F = TypeVar("F")

GONE: Final = 410
NOT_FOUND: Final = 404
PAGE: Final = 500
"""Objects per page of a list."""

LIST_TIMEOUT: Final = Seconds(30.0)
WATCH_LENGTH: Final = Seconds(240.0)
"""How long the server may keep one watch; a new one resumes where it ended."""

SHORTEST_WATCH: Final = Seconds(1.0)
"""A server that ends watches sooner than this is not asked again at once."""

WATCH_SILENCE: Final = Seconds(90.0)
"""Servers send a bookmark about once a minute; a watch that is silent for longer is taken for dead."""

BACKOFF: Final = Backoff(Seconds(0.2), Seconds(5.0))
MISSING_RETRY: Final = Seconds(60.0)
"""How often a kind that the cluster lacks is looked for."""


@dataclass(frozen=True, slots=True)
class Change(Generic[F]):
    """One fact before and after: ``before`` None is new, ``after`` None is deleted."""

    name: ObjectName
    before: F | None
    after: F | None


class WatchReport(Protocol):
    """Who is told how a watch is doing."""

    def watch_heard(self, kind: str) -> None:
        """A watch was opened or said something."""

    def watch_listed(self, kind: str, count: int) -> None:
        """A list was taken in whole."""

    def watch_failed(self, kind: str, error: ApiError) -> None:
        """A list or watch broke off; it will be tried again."""

    def watch_missing(self, kind: str) -> None:
        """The cluster lacks this kind, which it may; it will be looked for again."""

    def object_unreadable(self, kind: str, name: ObjectName, reason: str) -> None:
        """An object breaks a rule and is ignored as it is now."""


@dataclass(frozen=True, slots=True)
class Kind(Generic[F]):
    """What to watch: a collection's path, and how one of its objects becomes a fact (raises ``ValueError``).

    A cluster may lack a kind that ``is_optional``.
    """

    name: str
    path: str
    read: Callable[[JsonObject], F]
    is_optional: bool = False


class _Event(msgspec.Struct, frozen=True):
    type: str
    subject: dict[str, object] = msgspec.field(name="object")


_EVENT: Final = msgspec.json.Decoder(_Event)


@dataclass(slots=True, eq=False)
class Informer(Generic[F]):
    """The facts of one kind by name. ``on_change`` runs at once for each change and must not wait for anything.

    ``is_missing`` while the cluster lacks the kind.
    """

    kind: Kind[F]
    on_change: Callable[[Change[F]], None]
    report: WatchReport
    facts: dict[ObjectName, F] = field(default_factory=dict)
    is_missing: bool = False
    _versions: dict[ObjectName, int] = field(default_factory=dict)
    _version: str | None = None
    _failures: int = 0

    async def run(self, api: KubernetesApi, clock: Clock, on_synced: Callable[[], None]) -> Never:
        """Lists and watches for ever; ``on_synced`` is called after each complete list."""
        while True:
            try:
                if self._version is None:
                    await self._list(api)
                    on_synced()
                await self._watch(api, clock)
            except ApiError as error:
                status = error.status if isinstance(error, ApiRefusedError) else None
                if status == NOT_FOUND and self._version is None and self.kind.is_optional:
                    self._go_missing(on_synced)
                    await clock.sleep(MISSING_RETRY)
                    continue
                if status in (GONE, NOT_FOUND):
                    self._version = None
                self._failures += 1
                self.report.watch_failed(self.kind.name, error)
                await clock.sleep(BACKOFF.delay(self._failures, clock.jitter()))

    def learn(self, obj: JsonObject) -> F | None:
        """Takes an object that was read on its own, as if it had been watched; None where it cannot be read."""
        name, version = object_name(obj), number(_mapping(obj, "metadata").get("resourceVersion"))
        try:
            fact = self.kind.read(obj)
        except ValueError as error:
            self.report.object_unreadable(self.kind.name, name, str(error))
            return None
        if version >= self._versions.get(name, 0):
            self._versions[name] = version
            self._put(name, fact)
        return fact

    def forget(self, name: ObjectName) -> None:
        """Takes note that the object is gone."""
        self._versions.pop(name, None)
        before = self.facts.pop(name, None)
        if before is not None:
            self.on_change(Change(name, before, None))

    def _go_missing(self, on_synced: Callable[[], None]) -> None:
        if self.is_missing:
            return
        self.is_missing = True
        for name in list(self.facts):
            self.forget(name)
        self.report.watch_missing(self.kind.name)
        on_synced()

    def _put(self, name: ObjectName, fact: F) -> None:
        before = self.facts.get(name)
        if fact == before:
            return
        self.facts[name] = fact
        self.on_change(Change(name, before, fact))

    async def _list(self, api: KubernetesApi) -> None:
        seen: set[ObjectName] = set()
        query = {"limit": str(PAGE)}
        while True:
            page = await api.call(ApiCall("GET", self.kind.path, LIST_TIMEOUT, query=query))
            for obj in _items(page):
                seen.add(object_name(obj))
                self.learn(obj)
            metadata = _mapping(page, "metadata")
            if not metadata.get("continue"):
                break
            query = {"limit": str(PAGE), "continue": str(metadata["continue"])}
        self._version = str(metadata.get("resourceVersion", ""))
        for name in self.facts.keys() - seen:
            if self._versions.get(name, 0) <= number(self._version):
                self.forget(name)
        self.is_missing = False
        self.report.watch_listed(self.kind.name, len(seen))

    async def _watch(self, api: KubernetesApi, clock: Clock) -> None:
        query = {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": self._version or "",
            "timeoutSeconds": str(int(WATCH_LENGTH * (1 + clock.jitter()))),
        }
        began = clock.now()
        self.report.watch_heard(self.kind.name)
        async with api.stream(ApiCall("GET", self.kind.path, WATCH_SILENCE, query=query)) as lines:
            async for line in lines:
                self._event(line)
                self._failures = 0
                self.report.watch_heard(self.kind.name)
        if clock.now() - began < SHORTEST_WATCH:
            raise ApiUnknownError(f"the server ended the watch of {self.kind.name} at once")

    def _event(self, line: bytes) -> None:
        try:
            event = _EVENT.decode(line)
        except msgspec.DecodeError as error:
            raise ApiUnknownError(f"watch of {self.kind.name}: {error}") from error
        if event.type == "ERROR":
            code = event.subject.get("code")
            message = str(event.subject.get("message", "watch failed"))
            raise ApiRefusedError(code if isinstance(code, int) else 500, message)
        version = _mapping(event.subject, "metadata").get("resourceVersion", self._version)
        if event.type == "DELETED":
            if self._versions.get(object_name(event.subject), 0) <= number(version):
                self.forget(object_name(event.subject))
        elif event.type != "BOOKMARK":
            self.learn(event.subject)
        self._version = str(version)


def object_name(obj: JsonObject) -> ObjectName:
    """The namespace (empty for objects of the whole cluster) and name of any object."""
    metadata = _mapping(obj, "metadata")
    return ObjectName(str(metadata.get("namespace", "")), str(metadata.get("name", "")))


def number(version: object) -> int:
    """A resourceVersion in its order of age; 0 where it is no number, so that everything counts as new."""
    text = str(version)
    return int(text) if text.isascii() and text.isdigit() else 0


def _items(page: JsonObject) -> list[JsonObject]:
    items = page.get("items")
    return [item for item in items if isinstance(item, Mapping)] if isinstance(items, list) else []


def _mapping(obj: JsonObject, key: str) -> JsonObject:
    found = obj.get(key)
    return found if isinstance(found, Mapping) else {}
