"""One kind of object kept in step with the API: list, watch, resume, list again (level-triggered).

Rules that hold here:

- No object is a reason to stop, also one that cannot be read (see ``known``).
- The next list makes up for what a watch missed: the difference between known and listed objects goes to the
  handler as if it had been watched. Losing an event therefore only delays. A list never removes what is younger than
  itself.
- After 410, or a line that is no event, the resource version is worthless: list again. After anything else, resume,
  but not from a version that the store has not reached: it was restored, and such a watch would stay silent.
- Lists and reads are consistent: they show all that was known before they were asked for. A list that is older than
  that, or that shows an object older than it was or one that was gone, proves that the store was restored, also where
  its revision was raised above all earlier ones (``etcdutl snapshot restore --bump-revision``). Then versions that
  were known mean nothing any more, and everything is read again.
- A kind that a cluster may lack (404 for its list) counts as listed and empty, and is looked for now and then.
- No failure ends ``run``; consecutive failures wait longer, spread by chance, and as long as the server asks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Final, Never

from protocol.backoff import Backoff, Retries
from protocol.kubernetes.cursor import Cursor, WatchTimes, watch_query
from protocol.kubernetes.objects import Json, JsonObject, name_of, number, uid_of, version_of
from protocol.kubernetes.pages import Page, Unreadable, UnreadableAnswerError, WatchEvent, read_event
from protocol.kubernetes.refusals import heeded
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
from scheduler_plugin.cluster.watches.kinds import F
from scheduler_plugin.cluster.watches.known import KnownFacts

PAGE: Final = 500
"""Objects per page of a list; fewer where objects are so large that a page of them is not read at once."""

AT_ONCE: Final = 64
"""This many objects of a page are taken in before others get their turn."""

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

LIST_AFTER: Final = 10
"""After this many failures in a row the version is not believed any more: list again."""


@dataclass(slots=True, eq=False)
class FactInformer(KnownFacts[F]):
    """Cache of one kind, kept in step. ``is_missing`` while the cluster lacks the kind, ``is_answered`` while
    lists and watches of it have not broken off since the API server last answered.

    ``on_restored`` runs as soon as it is certain that the cluster's store was restored; a list of this kind follows.
    """

    is_missing: bool = False
    is_answered: bool = False
    on_restored: Callable[[], None] = lambda: None
    _failures: int = 0
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
    def is_current(self) -> bool:
        """True if the watch has said something since it last broke off."""
        return not self._retries.failures

    async def run(self, api: KubernetesApi, clock: Clock, on_synced: Callable[[], None]) -> Never:
        """Lists and watches for ever; ``on_synced`` is called after each complete list."""
        while True:
            await self._interruptible(self._round(api, clock, on_synced))

    async def refresh(self) -> None:
        """Returns once a list has been taken in that was begun after this call: all that was written before is known.

        ``run`` must be running.
        """
        wanted = self._list_again()
        while self._taken < wanted:
            self._listed.clear()
            await self._listed.wait()

    async def read(self, name: ObjectName, answer: Awaitable[JsonObject]) -> F | None:
        """As ``learn``, with the object of that name as it is read now.

        Raises ``ApiError``: also if the object is older than it was known to be, because the store was restored.
        """
        known, gone = self._versions.get(name, 0), frozenset(self._gone)
        obj = await answer
        if 0 < number(version_of(obj)) < known or uid_of(obj) in gone:
            self.report.watch_restored(self.kind.name)
            self.read_again()
            self.on_restored()
            raise ApiUnknownError(f"{self.kind.name} {name}: the cluster's store was restored, and is read again")
        return self.learn(obj)

    def read_again(self) -> None:
        """The store was restored: what comes now counts, whatever its version, and a list is asked for at once."""
        self.go_back()
        self._list_again()

    def _list_again(self) -> int:
        """Asks for a list that is begun from now on; ``_taken`` reaches the number once it has been taken in."""
        self._wanted += 1
        if self._interruption is not None and not self._interruption.expired():
            self._interruption.reschedule(asyncio.get_running_loop().time())
        return self._wanted

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
            self.is_answered = False
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

    def _go_back(self) -> None:
        self.go_back()
        self.report.watch_restored(self.kind.name)
        self.on_restored()

    def _go_missing(self, on_synced: Callable[[], None]) -> None:
        self.is_answered = True
        if self.is_missing:
            self._synced(lambda: None)
            return
        self.is_missing = True
        self.forget_all()
        self.report.watch_missing(self.kind.name)
        self._synced(on_synced)

    async def _list(self, api: KubernetesApi) -> None:
        seen, gone, anew = set[ObjectName](), frozenset(self._gone), self._cursor.must_list
        rest = ""
        while True:
            page = await self._page(api, {"continue": rest} if rest else {})
            if self._is_restored(page, gone):
                self._go_back()
                seen, gone, rest = set(), frozenset(), ""  # what this list has shown so far was not believed
                continue
            seen |= await self._take(page, anew=anew)
            rest = page.rest
            if not rest:
                break
        self._cursor.listed(page.version)
        self.newest = number(page.version)
        self.forget_unlisted(seen, self.newest)
        self.is_missing = False
        self.report.watch_listed(self.kind.name, len(seen))

    async def _look_at_store(self, api: KubernetesApi) -> None:
        """A watch ends with its server, and the one that comes next may have an older store."""
        page = await api.page(ApiCall("GET", self.kind.path, LIST_TIMEOUT, query={"limit": "1"}))
        if number(page.version) < number(self._cursor.version) or self._is_restored(page, frozenset(self._gone)):
            self._cursor = Cursor()

    def _is_restored(self, page: Page, gone: AbstractSet[str]) -> bool:
        """Return True if a page shows what was before; ``gone`` are the objects known to be gone before it was asked
        for.
        """
        by = number(page.version)
        shown = [(name_of(each), uid_of(each), version_of(each)) for each in page.objects]
        shown += [(each.name, each.uid, each.version) for each in page.unreadable]
        return by < self.newest or any(
            uid in gone or self.is_older(name, number(version), by) for name, uid, version in shown
        )

    async def _page(self, api: KubernetesApi, query: Mapping[str, str]) -> Page:
        while True:
            limit = {"limit": str(self._page_size)}
            try:
                return await api.page(ApiCall("GET", self.kind.path, LIST_TIMEOUT, query={**limit, **query}))
            except PageTooLargeError:
                if self._page_size == 1:
                    raise
                self._page_size = max(1, self._page_size // 4)

    async def _take(self, page: Page, *, anew: bool) -> set[ObjectName]:
        for count, obj in enumerate(page.objects, start=1):
            self.learn(obj, anew=anew)
            if count % AT_ONCE == 0:
                await asyncio.sleep(0)
        for found in page.unreadable:
            self.learn_unreadable(found, _identity(found))
        return {*map(name_of, page.objects), *(found.name for found in page.unreadable)}

    async def _watch(self, api: KubernetesApi, clock: Clock) -> None:
        times = WatchTimes.spread(clock.jitter(), WATCH_SPAN)
        query = watch_query(self._cursor.version or "", times)
        began, self.is_answered = clock.now(), True
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
        self.learn_fact(watched.name, watched.uid, watched.version, watched.fact)
        self._cursor.reach(watched.version)
        self.newest = max(self.newest, number(watched.version))

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
        self.newest = max(self.newest, number(event.version))

    def _require_younger(self, version: str) -> None:
        if 0 < number(version) < number(self._cursor.version):
            self._cursor = Cursor()
            raise ApiUnknownError(f"watch of {self.kind.name}: version {version} is older than the watch itself")

    def _event(self, event: WatchEvent) -> None:
        if event.type == "DELETED":
            self.forget_at(event.name, number(event.version or self._cursor.version))
        elif event.unreadable is not None:
            self.learn_unreadable(event.unreadable, _identity(event.unreadable))
        elif event.type != "BOOKMARK":
            self.learn(event.object)


def _identity(found: Unreadable) -> Json:
    """Identity of an object that could not be decoded."""
    name = {"namespace": found.name.namespace, "name": found.name.name}
    return {"metadata": name | {"uid": found.uid, "resourceVersion": found.version}}
