"""One kind of object kept in step with the API: list, watch, resume, list again (level-triggered).

Rules that hold here:

- Objects are turned into facts as they arrive, one by one, and only facts are kept. An object that cannot be read is
  reported once per version and kept as the most that it may be (``Kind.at_most``); a kind without such a fact keeps
  what was known before. It is never a reason to stop.
- What a watch missed, the next list tells: the difference between what was known and what is listed goes to the
  handler as if it had been watched. Losing an event therefore only delays.
- What was read on its own may be newer than what a watch or list says next: an older version of an object never
  replaces a newer one, and a list never removes what is younger than itself.
- After 410, or a line that is no event, the resource version is worthless: list again. After anything else, resume,
  but not from a version that the store has not reached: it was restored, and such a watch would stay silent.
- A kind that a cluster may lack (404 for its list) counts as listed and empty, and is looked for now and then.
- No failure ends ``run``; consecutive failures wait longer, spread by chance, and as long as the server asks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Final, Generic, Never, Protocol, TypeVar

from protocol.backoff import Backoff, Retries
from protocol.kubernetes.cursor import Cursor, WatchTimes, watch_query
from protocol.kubernetes.objects import Json, JsonObject, name_of, number, uid_of, version_of
from protocol.kubernetes.pages import Page, Unreadable, UnreadableAnswerError, WatchEvent, read_event
from protocol.kubernetes.refusals import RefusalKind, heeded
from protocol.messages import ObjectName
from protocol.runtime.clock import Clock
from protocol.units import Seconds
from scheduler_plugin.cluster.api import (
    ApiCall,
    ApiError,
    ApiRefusedError,
    ApiUnknownError,
    KubernetesApi,
    PageTooLargeError,
)

F = TypeVar("F")

PAGE: Final = 500
"""Objects per page of a list; fewer where objects are so large that a page of them is not read at once."""

AT_ONCE: Final = 64
"""So many objects of a page are taken in before others get their turn."""

LONG_LINE: Final = 16 * 1024
"""Bytes. A longer line of a watch is taken apart in a thread: at worst it costs milliseconds."""

LIST_TIMEOUT: Final = Seconds(30.0)
WATCH_SPAN: Final = Seconds(20.0)
"""A watch is asked to end after this long, or up to twice as long, so that a dead connection is noticed soon."""

SHORTEST_WATCH: Final = Seconds(1.0)
"""A server that ends watches sooner than this is not asked again at once."""

BACKOFF: Final = Backoff(Seconds(0.1), Seconds(2.5), spread=1.0)
MISSING_RETRY: Final = Seconds(60.0)
"""How often a kind that the cluster lacks is looked for."""


REMEMBERED_GONE: Final = 2_000
"""Of so many deleted objects it is remembered that they are gone: an answer about one may arrive late."""

LIST_AFTER: Final = 10
"""After so many failures in a row the version is not believed any more: list again."""


@dataclass(frozen=True, slots=True)
class Change(Generic[F]):
    """One fact before and after: ``before`` None is new, ``after`` None is deleted."""

    name: ObjectName
    before: F | None
    after: F | None


@dataclass(frozen=True, slots=True)
class Watched(Generic[F]):
    """An object that appeared or changed, by a line of a watch."""

    name: ObjectName
    uid: str
    version: str
    fact: F


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

    def watch_restored(self, kind: str) -> None:
        """A list is older than what was known: the cluster's store was restored, and the list is believed."""

    def object_unreadable(self, kind: str, found: Unreadable) -> None:
        """This version of an object cannot be read."""

    def unreadable_objects(self, kind: str, count: int) -> None:
        """So many objects cannot be read now."""


@dataclass(frozen=True, slots=True)
class Kind(Generic[F]):
    """What to watch: a collection's path, and how one of its objects becomes a fact (raises ``ValueError``).

    A cluster may lack a kind that ``is_optional``, and may forbid one that ``may_be_forbidden``. ``at_most`` makes the
    fact of an object that cannot be read: the most that it may be, from what is left of it (at least its ``metadata``)
    and the reason. It never raises. ``read_line`` reads a usual line of a watch with less work, to the same fact; None
    where it is any other line, or cannot be read: then it is taken apart.
    """

    name: str
    path: str
    read: Callable[[JsonObject], F]
    is_optional: bool = False
    may_be_forbidden: bool = False
    at_most: Callable[[JsonObject, str], F] | None = None
    read_line: Callable[[bytes], Watched[F] | None] | None = None

    def can_do_without(self, refusal: RefusalKind) -> bool:
        """Whether a list that is refused so counts as empty."""
        if refusal is RefusalKind.FORBIDDEN:
            return self.may_be_forbidden
        return self.is_optional and refusal is RefusalKind.NOT_FOUND


@dataclass(slots=True, eq=False)
class Informer(Generic[F]):
    """The facts of one kind by name. ``on_change`` runs at once for each change and must not wait for anything.

    ``is_missing`` while the cluster lacks the kind; ``unreadable`` has the objects that cannot be read, and why.
    ``on_restored`` runs before a list that is older than what is known: the cluster's store was restored.
    """

    kind: Kind[F]
    on_change: Callable[[Change[F]], None]
    report: WatchReport
    facts: dict[ObjectName, F] = field(default_factory=dict)
    unreadable: dict[ObjectName, Unreadable] = field(default_factory=dict)
    is_missing: bool = False
    on_restored: Callable[[], None] = lambda: None
    _versions: dict[ObjectName, int] = field(default_factory=dict)
    _uids: dict[ObjectName, str] = field(default_factory=dict)
    _gone: dict[str, int] = field(default_factory=dict)
    _failures: int = 0
    _newest: int = 0
    _resumes: bool = False
    _cursor: Cursor = field(default_factory=Cursor)
    _retries: Retries = field(default_factory=lambda: Retries(BACKOFF))
    _page_size: int = PAGE
    _wanted: int = 1
    _begun: int = 0
    _taken: int = 0
    _listed: asyncio.Event = field(default_factory=asyncio.Event)
    _interruption: asyncio.Timeout | None = None

    @property
    def newest(self) -> int:
        """The newest version that a list or a watch has told; 0 before the first."""
        return self._newest

    @property
    def is_current(self) -> bool:
        """Whether the watch has said something since it last broke off."""
        return not self._retries.failures

    async def run(self, api: KubernetesApi, clock: Clock, on_synced: Callable[[], None]) -> Never:
        """Lists and watches for ever; ``on_synced`` is called after each complete list."""
        while True:
            await self._interruptible(self._round(api, clock, on_synced))

    async def refresh(self) -> None:
        """Returns once a list has been taken in that was begun after this call: all that was written before is known.

        ``run`` must be running.
        """
        self._wanted += 1
        wanted = self._wanted
        if self._interruption is not None and not self._interruption.expired():
            self._interruption.reschedule(asyncio.get_running_loop().time())
        while self._taken < wanted:
            self._listed.clear()
            await self._listed.wait()

    async def _interruptible(self, work: Coroutine[None, None, None]) -> None:
        interruption = asyncio.timeout(None)
        try:
            async with interruption:
                self._interruption = interruption
                await work
        except TimeoutError:
            if not interruption.expired():
                raise
        finally:
            self._interruption = None

    async def _round(self, api: KubernetesApi, clock: Clock, on_synced: Callable[[], None]) -> None:
        try:
            if self._resumes and not self._must_list:
                await self._look_at_store(api)
            if self._must_list:
                self._begun = self._wanted
                await self._list(api)
                self._synced(on_synced)
            self._resumes = True
            await self._watch(api, clock)
        except ApiError as error:
            if isinstance(error, ApiRefusedError):
                if self._must_list and self.kind.can_do_without(error.kind):
                    self._go_missing(on_synced)
                    await clock.sleep(MISSING_RETRY)
                    return
                self._cursor.refused(error.refusal)
            self._failures += 1
            if self._failures >= LIST_AFTER:
                self._cursor = Cursor()
            self.report.watch_failed(self.kind.name, error)
            wait = self._retries.failed(clock.jitter())
            await clock.sleep(Seconds(wait + heeded(error.retry_after)))

    def _synced(self, on_synced: Callable[[], None]) -> None:
        on_synced()
        self._taken = self._begun
        self._listed.set()

    @property
    def _must_list(self) -> bool:
        return self._cursor.must_list or self._taken < self._wanted

    def learn(self, obj: JsonObject) -> F | None:
        """Takes an object that was read on its own, as if it had been watched.

        Returns its fact; the most that it may be where it cannot be read, None where the kind has no such fact.
        """
        name = name_of(obj)
        try:
            fact = self.kind.read(obj)
        except ValueError as error:
            return self._learn_unreadable(Unreadable(name, uid_of(obj), version_of(obj), str(error)), obj)
        self._learned(name, uid_of(obj), version_of(obj), fact)
        return fact

    def at_version(self, name: ObjectName, version: str) -> F | None:
        """The fact of this very version of an object that can be read; None where another one is known, or none."""
        is_this = 0 < number(version) == self._versions.get(name) and name not in self.unreadable
        return self.facts.get(name) if is_this else None

    def _learned(self, name: ObjectName, uid: str, version: str, fact: F) -> None:
        if self._is_news(name, uid, version):
            self._now_readable(name)
            self._put(name, fact)

    def forget(self, name: ObjectName, version: int = 0) -> None:
        """Takes note that the object is gone, and what is no newer than ``version`` with it."""
        known = self._versions.pop(name, 0)
        uid = self._uids.pop(name, "")
        if uid:
            self._gone[uid] = max(known, version, number(self._cursor.version))
            if len(self._gone) > REMEMBERED_GONE:
                del self._gone[next(iter(self._gone))]
        self._now_readable(name)
        before = self.facts.pop(name, None)
        if before is not None:
            self.on_change(Change(name, before, None))

    def _learn_unreadable(self, found: Unreadable, obj: JsonObject) -> F | None:
        at_most = self.kind.at_most
        fact = None if at_most is None else at_most(obj, found.reason)
        if self._is_news(found.name, found.uid, found.version):
            before = self.unreadable.get(found.name)
            self.unreadable[found.name] = found
            if before is None or (before.uid, before.version) != (found.uid, found.version):
                self.report.object_unreadable(self.kind.name, found)
                self.report.unreadable_objects(self.kind.name, len(self.unreadable))
            if fact is not None:
                self._put(found.name, fact)
        return fact

    def _is_news(self, name: ObjectName, uid: str, version: str) -> bool:
        """Whether nothing newer is known, the end of this very object included; remembers the version."""
        age = number(version)
        if age < self._versions.get(name, 0) or age <= self._gone.get(uid, -1):
            return False
        self._versions[name], self._uids[name] = age, uid
        return True

    def _go_back(self) -> None:
        """The store was restored: versions start again, and what was deleted since may be back."""
        self._versions.clear()
        self._gone.clear()
        self._newest = 0
        self.report.watch_restored(self.kind.name)
        self.on_restored()

    def _now_readable(self, name: ObjectName) -> None:
        if self.unreadable.pop(name, None) is not None:
            self.report.unreadable_objects(self.kind.name, len(self.unreadable))

    def _go_missing(self, on_synced: Callable[[], None]) -> None:
        if self.is_missing:
            self._synced(lambda: None)
            return
        self.is_missing = True
        for name in self.facts.keys() | self.unreadable.keys():
            self.forget(name)
        self.report.watch_missing(self.kind.name)
        self._synced(on_synced)

    def _put(self, name: ObjectName, fact: F) -> None:
        before = self.facts.get(name)
        if fact == before:
            return
        self.facts[name] = fact
        self.on_change(Change(name, before, fact))

    async def _list(self, api: KubernetesApi) -> None:
        seen: set[ObjectName] = set()
        rest = ""
        while True:
            page = await self._page(api, {"continue": rest} if rest else {})
            if number(page.version) < self._newest:
                self._go_back()
            seen |= await self._take(page)
            rest = page.rest
            if not rest:
                break
        self._cursor.listed(page.version)
        self._newest = number(page.version)
        for name in (self.facts.keys() | self.unreadable.keys()) - seen:
            if self._versions.get(name, 0) <= number(page.version):
                self.forget(name, number(page.version))
        self.is_missing = False
        self.report.watch_listed(self.kind.name, len(seen))

    async def _look_at_store(self, api: KubernetesApi) -> None:
        """A watch ends with its server, and the one that comes next may have an older store."""
        page = await api.page(ApiCall("GET", self.kind.path, LIST_TIMEOUT, query={"limit": "1"}))
        if number(page.version) < number(self._cursor.version):
            self._cursor = Cursor()

    async def _page(self, api: KubernetesApi, query: Mapping[str, str]) -> Page:
        while True:
            limit = {"limit": str(self._page_size)}
            try:
                return await api.page(ApiCall("GET", self.kind.path, LIST_TIMEOUT, query={**limit, **query}))
            except PageTooLargeError:
                if self._page_size == 1:
                    raise
                self._page_size = max(1, self._page_size // 4)

    async def _take(self, page: Page) -> set[ObjectName]:
        for count, obj in enumerate(page.objects, start=1):
            self.learn(obj)
            if count % AT_ONCE == 0:
                await asyncio.sleep(0)
        for found in page.unreadable:
            self._learn_unreadable(found, _identity(found))
        return {*map(name_of, page.objects), *(found.name for found in page.unreadable)}

    async def _watch(self, api: KubernetesApi, clock: Clock) -> None:
        times = WatchTimes.spread(clock.jitter(), WATCH_SPAN)
        query = watch_query(self._cursor.version or "", times)
        began = clock.now()
        self.report.watch_heard(self.kind.name)
        async with api.stream(ApiCall("GET", self.kind.path, times.silence, query=query)) as lines:
            async for line in lines:
                await self._line(line)
                self._failures = 0
                self._retries.succeeded()
                self.report.watch_heard(self.kind.name)
        if clock.now() - began < SHORTEST_WATCH:
            raise ApiUnknownError(f"the server ended the watch of {self.kind.name} at once")

    async def _line(self, line: bytes) -> None:
        read = self.kind.read_line
        watched = None if read is None or len(line) >= LONG_LINE else read(line)
        if watched is None:
            await self._any_line(line)
            return
        self._require_younger(watched.version)
        self._learned(watched.name, watched.uid, watched.version, watched.fact)
        self._cursor.reach(watched.version)
        self._newest = max(self._newest, number(watched.version))

    async def _any_line(self, line: bytes) -> None:
        try:
            event = read_event(line) if len(line) < LONG_LINE else await asyncio.to_thread(read_event, line)
        except UnreadableAnswerError as error:
            self._cursor = Cursor()
            raise ApiUnknownError(f"watch of {self.kind.name}: {error}") from error
        if event.refusal is not None:
            raise ApiRefusedError(event.refusal)
        self._require_younger(event.version)
        self._event(event)
        self._cursor.take(event)
        self._newest = max(self._newest, number(event.version))

    def _require_younger(self, version: str) -> None:
        if 0 < number(version) < number(self._cursor.version):
            self._cursor = Cursor()
            raise ApiUnknownError(f"watch of {self.kind.name}: version {version} is older than the watch itself")

    def _event(self, event: WatchEvent) -> None:
        if event.type == "DELETED":
            version = number(event.version or self._cursor.version)
            if self._versions.get(event.name, 0) <= version:
                self.forget(event.name, version)
        elif event.unreadable is not None:
            self._learn_unreadable(event.unreadable, _identity(event.unreadable))
        elif event.type != "BOOKMARK":
            self.learn(event.object)


def _identity(found: Unreadable) -> Json:
    """What is left of an object that could not be decoded."""
    name = {"namespace": found.name.namespace, "name": found.name.name}
    return {"metadata": name | {"uid": found.uid, "resourceVersion": found.version}}
