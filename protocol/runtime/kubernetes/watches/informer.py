"""One kind of object kept in step with the API: list, watch, resume, list again (level-triggered).

Lists and reads are consistent: they show all that was known before they were sent. A list that is older than that, or
that shows an object older than it was or one that was gone, proves that the store was restored, even if its revision
was raised above all earlier ones (``etcdutl snapshot restore --bump-revision``). Known versions then mean nothing any
more, and everything is read again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Final, Never

from protocol.backoff import Backoff, Retries
from protocol.kubernetes.api import (
    ApiCall,
    ApiError,
    ApiRefusedError,
    ApiUnknownError,
    KubernetesApi,
    PageTooLargeError,
)
from protocol.kubernetes.objects import Json, JsonObject, name_of, number, uid_of, version_of
from protocol.kubernetes.pages import Page, Unreadable, UnreadableAnswerError, WatchEvent, read_event
from protocol.kubernetes.refusals import RefusalKind, capped_retry_after
from protocol.kubernetes.watch_times import WatchTimes, watch_query
from protocol.messages import ObjectName
from protocol.runtime.clock import Clock
from protocol.runtime.kubernetes.watches.kinds import F
from protocol.runtime.kubernetes.watches.known import KnownFacts
from protocol.units import Seconds

PAGE: Final = 500
"""Objects per page of a list; fewer if objects are so large that a page has too many bytes."""

AT_ONCE: Final = 64
"""This many objects of a page are taken in before other tasks get their turn."""

LONG_LINE: Final = 16 * 1024
"""Bytes. A longer line of a watch is decoded in a thread; decoding a shorter one costs milliseconds at worst."""

LIST_TIMEOUT: Final = Seconds(30.0)
WATCH_SPAN: Final = Seconds(20.0)
"""A watch is asked to end after this long, or up to twice as long, so that a dead connection is noticed soon."""

SHORTEST_WATCH: Final = Seconds(1.0)
"""A server that ends watches sooner than this is not asked again at once."""

BACKOFF: Final = Backoff(Seconds(0.1), Seconds(2.5), spread=1.0)
MISSING_RETRY: Final = Seconds(60.0)
"""How often a kind that the cluster lacks is looked for."""

LIST_AFTER: Final = 10
"""After this many failures in a row the version is no longer trusted: list again."""


@dataclass(slots=True, eq=False)
class FactInformer(KnownFacts[F]):
    """Cache of one kind, kept in step. ``is_missing`` while the cluster lacks the kind; ``is_answered`` from an answer
    of the API server until a list or watch breaks off.

    ``on_restored`` runs as soon as it is certain that the cluster's store was restored; a list of this kind follows.
    """

    is_missing: bool = False
    is_answered: bool = False
    on_restored: Callable[[], None] = lambda: None
    retries: Retries = field(default_factory=lambda: Retries(BACKOFF))
    _failures: int = 0
    _resumes: bool = False
    _position: str | None = None
    """The resourceVersion to watch from; None if the objects must be listed first."""
    _page_size: int = PAGE
    _wanted: int = 1
    _begun: int = 0
    _taken: int = 0
    _listed: asyncio.Event = field(default_factory=asyncio.Event)
    _interruption: asyncio.Timeout | None = None

    @property
    def is_current(self) -> bool:
        """False from a failure until the watch delivers something again."""
        return not self.retries.failures

    async def run(self, api: KubernetesApi, clock: Clock, on_synced: Callable[[], None]) -> Never:
        """List and watches for ever; ``on_synced`` is called after each complete list."""
        while True:
            await self._interruptible(self._round(api, clock, on_synced))

    async def refresh(self) -> None:
        """Return once a list that began after this call has been taken in: everything written before is then known.

        ``run`` must be running.
        """
        # A list that is already under way may have been begun before the last write.
        wanted = self._list_again()
        while self._taken < wanted:
            # Several may wait: each clears the event before it waits again.
            self._listed.clear()
            await self._listed.wait()

    async def list_once(self, api: KubernetesApi) -> None:
        """List now, for callers that do not run this: nothing follows the changes. Raises ``ApiError``."""
        # Before the list is sent: a refresh that is asked for meanwhile needs another list.
        self._begun = self._wanted
        await self._list(api)
        self._taken = self._begun

    async def read(self, name: ObjectName, answer: Awaitable[JsonObject]) -> F | None:
        """As ``learn``, with the object of that name that ``answer`` reads.

        Raises ``ApiError``: also if the object is older than it was known to be, because the store was restored.
        """
        # Taken before the answer is awaited: the watch may deliver newer versions meanwhile, which prove nothing.
        newest, gone = self._versions.get(name, 0), frozenset(self._gone)
        obj = await answer
        # Reads are consistent, so an older object, or one that was gone, means a restored store.
        if 0 < number(version_of(obj)) < newest or uid_of(obj) in gone:
            self.report.watch_restored(self.kind.name)
            self.read_again()
            self.on_restored()
            raise ApiUnknownError(f"{self.kind.name} {name}: the cluster's store was restored, and is read again")
        return self.learn(obj)

    def read_again(self) -> None:
        """After a restore of the store: accepts objects of any version, and lists at once."""
        self.go_back()
        self._list_again()

    def _list_again(self) -> int:
        """Ask for a new list, and return its number; ``_taken`` reaches it once the list has been taken in."""
        self._wanted += 1
        if self._interruption is not None and not self._interruption.expired():
            # A deadline of now breaks off the watch, which would hold up the list until it ended by itself.
            self._interruption.reschedule(asyncio.get_running_loop().time())
        return self._wanted

    async def _interruptible(self, work: Coroutine[None, None, None]) -> None:
        interruption = asyncio.timeout(None)
        try:
            async with interruption:
                self._interruption = interruption
                await work
        except TimeoutError:
            # A time-out of the work itself, not of the interruption.
            if not interruption.expired():
                raise
        finally:
            self._interruption = None

    async def _round(self, api: KubernetesApi, clock: Clock, on_synced: Callable[[], None]) -> None:
        try:
            # A watch that resumes from a version which a restored store has not reached yet would stay silent.
            if self._resumes and not self._must_list:
                await self._look_at_store(api)
            if self._must_list:
                await self.list_once(api)
                self._synced(on_synced)
            self._resumes = True
            await self._watch(api, clock)
        except ApiError as error:
            if isinstance(error, ApiRefusedError):
                if self._must_list and self.kind.can_do_without(error.kind):
                    self._go_missing(on_synced)
                    # A kind that the cluster lacks counts as listed and empty, and is looked for now and then.
                    await clock.sleep(MISSING_RETRY)
                    return
                # The version is too old, or the kind was removed: the next round lists. After any other failure the
                # watch resumes.
                if error.kind in (RefusalKind.GONE, RefusalKind.NOT_FOUND):
                    self._position = None
            self.is_answered = False
            self._failures += 1
            if self._failures >= LIST_AFTER:
                self._position = None
            self.report.watch_failed(self.kind.name, error)
            # Random, so that not all watches come back at once to a server that has just restarted.
            wait = self.retries.failed(clock.jitter())
            await clock.sleep(Seconds(wait + capped_retry_after(error.retry_after)))

    def _synced(self, on_synced: Callable[[], None]) -> None:
        on_synced()
        self._taken = self._begun
        self._listed.set()

    @property
    def _must_list(self) -> bool:
        return self._position is None or self._taken < self._wanted

    def _go_back(self) -> None:
        self.go_back()
        self.report.watch_restored(self.kind.name)
        self.on_restored()

    def _go_missing(self, on_synced: Callable[[], None]) -> None:
        self.is_answered = True
        if self.is_missing:
            # on_synced has run for the empty list already; only those that wait for a refresh have to go on.
            self._synced(lambda: None)
            return
        self.is_missing = True
        self.forget_all()
        self.report.watch_missing(self.kind.name)
        self._synced(on_synced)

    async def _list(self, api: KubernetesApi) -> None:
        listed, gone, reads_all = set[ObjectName](), frozenset(self._gone), self._position is None
        rest = ""
        while True:
            page = await self._page(api, {"continue": rest} if rest else {})
            # Versions are compared with those known before the list began.
            if self._is_restored(page, gone):
                self._go_back()
                # From its first page: objects there may have been skipped as older than the known ones.
                listed, gone, rest = set(), frozenset(), ""
                continue
            listed |= await self._take(page, reread=reads_all)
            rest = page.rest
            if not rest:
                break
        self._position = page.version
        self.newest = number(page.version)
        # Missed deletions reach on_change from here, so a lost event only delays. Objects younger than the list stay.
        self.forget_unlisted(listed, self.newest)
        self.is_missing = False
        self.report.watch_listed(self.kind.name, len(listed))

    async def _look_at_store(self, api: KubernetesApi) -> None:
        """Make the next round list if the store is older than the watch was, as after a restore."""
        # One object is enough to learn the version of the store.
        page = await api.page(ApiCall("GET", self.kind.path, LIST_TIMEOUT, query={"limit": "1", **self.kind.query}))
        if number(page.version) < number(self._position) or self._is_restored(page, frozenset(self._gone)):
            self._position = None

    def _is_restored(self, page: Page, gone: AbstractSet[str]) -> bool:
        """Return True if a page shows an earlier state of the store; ``gone`` are the UIDs of objects known to be gone
        before it was asked for.
        """
        page_version = number(page.version)
        versions = [(name_of(obj), uid_of(obj), version_of(obj)) for obj in page.objects]
        versions += [(unreadable.name, unreadable.uid, unreadable.version) for unreadable in page.unreadable]
        return page_version < self.newest or any(
            uid in gone or self.is_older(name, number(version), page_version) for name, uid, version in versions
        )

    async def _page(self, api: KubernetesApi, query: Mapping[str, str]) -> Page:
        while True:
            selection = {"limit": str(self._page_size), **self.kind.query, **query}
            try:
                return await api.page(ApiCall("GET", self.kind.path, LIST_TIMEOUT, query=selection))
            except PageTooLargeError:
                if self._page_size == 1:
                    raise
                # Kept for later lists, too: the objects of this kind are large.
                self._page_size = max(1, self._page_size // 4)

    async def _take(self, page: Page, *, reread: bool) -> set[ObjectName]:
        for count, obj in enumerate(page.objects, start=1):
            self.learn(obj, reread=reread)
            if count % AT_ONCE == 0:
                # Decoding a page of pods takes long enough to delay the answers to agents.
                await asyncio.sleep(0)
        for unreadable in page.unreadable:
            self.learn_unreadable(unreadable, _identity(unreadable))
        return {*map(name_of, page.objects), *(unreadable.name for unreadable in page.unreadable)}

    async def _watch(self, api: KubernetesApi, clock: Clock) -> None:
        # Spread, so that the watches of all kinds do not end at the same moment.
        times = WatchTimes.spread(clock.jitter(), WATCH_SPAN)
        query = watch_query(self._position or "", times) | self.kind.query
        began, self.is_answered = clock.now(), True
        self.report.watch_heard(self.kind.name)
        async with api.stream(ApiCall("GET", self.kind.path, times.silence, query=query)) as lines:
            async for line in lines:
                await self._line(line)
                self._failures = 0
                self.retries.succeeded()
                self.report.watch_heard(self.kind.name)
        # Raised for the sake of the back-off: otherwise such a server would be asked in a tight loop.
        if clock.now() - began < SHORTEST_WATCH:
            raise ApiUnknownError(f"the server ended the watch of {self.kind.name} at once")

    async def _line(self, line: bytes) -> None:
        read_line = self.kind.read_line
        # The fast path reads usual lines in one pass; the general one takes everything else, errors included.
        watched = None if read_line is None or len(line) >= LONG_LINE else read_line(line)
        if watched is None:
            await self._any_line(line)
            return
        self._require_younger(watched.version)
        self.learn_fact(watched.name, watched.uid, watched.version, watched.fact)
        self._reach(watched.version)

    async def _any_line(self, line: bytes) -> None:
        try:
            event = read_event(line) if len(line) < LONG_LINE else await asyncio.to_thread(read_event, line)
        except UnreadableAnswerError as error:
            self._position = None
            raise ApiUnknownError(f"watch of {self.kind.name}: {error}") from error
        if event.refusal is not None:
            raise ApiRefusedError(event.refusal)
        self._require_younger(event.version)
        self._event(event)
        self._reach(event.version)

    def _reach(self, version: str) -> None:
        """All changes up to this version have been applied; it is empty if the event says none."""
        # Bookmarks count, too, so that the version of a kind that rarely changes does not expire.
        self._position = version or self._position
        self.newest = max(self.newest, number(version))

    def _require_younger(self, version: str) -> None:
        # A watch goes back in time only if it is served from a restored store.
        if 0 < number(version) < number(self._position):
            self._position = None
            raise ApiUnknownError(f"watch of {self.kind.name}: version {version} is older than the watch itself")

    def _event(self, event: WatchEvent) -> None:
        if event.type == "DELETED":
            # A DELETED event may lack the version of the deletion; then the newest that the watch has reached bounds
            # it.
            self.forget_at(event.name, number(event.version or self._position))
        elif event.unreadable is not None:
            self.learn_unreadable(event.unreadable, _identity(event.unreadable))
        # A bookmark carries a version and no object worth reading.
        elif event.type != "BOOKMARK":
            self.learn(event.object)


def _identity(found: Unreadable) -> Json:
    name = {"namespace": found.name.namespace, "name": found.name.name}
    return {"metadata": name | {"uid": found.uid, "resourceVersion": found.version}}
