"""Synchronizes one kind of object with the API server: list, watch, resume, relist (level-triggered).

Lists and reads are consistent: they include everything known before they were sent. If a list is older than that, or
contains an object in an older version or one that was deleted, the store was restored from a backup, even if its
revision was raised above all earlier ones (``etcdutl snapshot restore --bump-revision``). Then known versions are
meaningless, and everything is read again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Final, Never

from protocol.backoff import Backoff, Retries
from protocol.kubernetes.api import (
    LONGEST_PAGE,
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
from protocol.runtime.kubernetes.watches.fact_cache import FactCache
from protocol.runtime.kubernetes.watches.kinds import F
from protocol.units import Seconds

PAGE: Final = 250
"""Objects per page of a list; fewer if a page would be too large."""

LARGE_PAGE: Final = 4 * 1024 * 1024
"""Maximum bytes of a page with several objects, which are decoded together: that may take 20 times as much memory. A
full page of ordinary pods, with up to 16 KiB each, fits.
"""

AT_ONCE: Final = 64
"""Objects of a page to process before other tasks may run."""

LONG_LINE: Final = 16 * 1024
"""A watch line of more bytes is decoded in a thread; decoding a shorter one takes milliseconds at worst."""

LIST_TIMEOUT: Final = Seconds(30.0)
WATCH_SPAN: Final = Seconds(20.0)
"""Requested duration of a watch, up to doubled by jitter; short, so that a dead connection is detected soon."""

SHORTEST_WATCH: Final = Seconds(1.0)
"""If the server ends a watch sooner than this, back off before the next."""

BACKOFF: Final = Backoff(Seconds(0.1), Seconds(2.5), spread=1.0)
MISSING_RETRY: Final = Seconds(60.0)
"""Interval of checks for a kind that the cluster lacks."""

LIST_AFTER: Final = 10
"""After this many failures in a row, relist instead of resuming."""


@dataclass(slots=True, eq=False)
class FactInformer(FactCache[F]):
    """A synchronized cache of one kind. ``is_missing`` while the cluster lacks the kind; ``is_answered`` from a
    response of the API server until a list or watch fails; ``failure`` is the reason of the last one.

    ``on_restored`` runs as soon as it is certain that the cluster's store was restored; then the kind is relisted.
    """

    is_missing: bool = False
    is_answered: bool = False
    failure: str = ""
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
        """False from a failure until the watch delivers data again."""
        return not self.retries.failures

    async def run(self, api: KubernetesApi, clock: Clock, on_synced: Callable[[], None]) -> Never:
        """List and watch forever; ``on_synced`` is called after each complete list."""
        while True:
            await self._interruptible(self._round(api, clock, on_synced))

    async def refresh(self) -> None:
        """Return once a list that started after this call is complete: it includes all earlier writes.

        ``run`` must be running.
        """
        # A list that is already in progress may have started before the last write.
        wanted = self._list_again()
        while self._taken < wanted:
            # There may be several waiters, so each clears the event before waiting again.
            self._listed.clear()
            await self._listed.wait()

    async def list_once(self, api: KubernetesApi) -> None:
        """List once, without watching for changes, for callers that do not ``run`` it. Raises ``ApiError``."""
        # Before sending the list: a refresh requested meanwhile needs another list.
        self._begun = self._wanted
        await self._list(api)
        self._taken = self._begun

    async def read(self, name: ObjectName, answer: Awaitable[JsonObject]) -> F | None:
        """Like ``learn``, for the object ``name`` as read by ``answer``.

        Raises ``ApiError``, also if the object is older than its known version, because the store was restored.
        """
        # Before awaiting the answer: the watch may deliver newer versions meanwhile, which prove nothing.
        newest, gone = self._versions.get(name, 0), dict(self._gone)
        obj = await answer
        # Reads are consistent, so an older object, or one that was deleted, means a restored store.
        version = number(version_of(obj))
        if 0 < version < newest or self._is_undeleted(uid_of(obj), version, gone):
            self.report.watch_restored(self.kind.name)
            self.read_again()
            self.on_restored()
            raise ApiUnknownError(f"{self.kind.name} {name}: the cluster's store was restored; relisting")
        return self.learn(obj)

    def read_again(self) -> None:
        """After a restore of the store: accept objects in any version, and relist immediately."""
        self.reset_versions()
        self._list_again()

    def _list_again(self) -> int:
        """Request a new list and return its number; ``_taken`` reaches it once the list is complete."""
        self._wanted += 1
        if self._interruption is not None and not self._interruption.expired():
            # Interrupt the watch, which would otherwise delay the list until it ends on its own.
            self._interruption.reschedule(asyncio.get_running_loop().time())
        return self._wanted

    async def _interruptible(self, work: Coroutine[None, None, None]) -> None:
        interruption = asyncio.timeout(None)
        try:
            async with interruption:
                self._interruption = interruption
                await work
        except TimeoutError:
            # The timeout comes from the work itself.
            if not interruption.expired():
                raise
        finally:
            self._interruption = None

    async def _round(self, api: KubernetesApi, clock: Clock, on_synced: Callable[[], None]) -> None:
        try:
            # A watch that resumes from a version that a restored store has not reached yet would stay silent.
            if self._resumes and not self._must_list:
                await self._check_store(api)
            if self._must_list:
                await self.list_once(api)
                self._synced(on_synced)
            self._resumes = True
            await self._watch(api, clock)
        except ApiError as error:
            if isinstance(error, ApiRefusedError):
                if self._must_list and self.kind.tolerates(error.kind):
                    self._go_missing(on_synced)
                    # A kind that the cluster lacks counts as listed and empty; check again later.
                    await clock.sleep(MISSING_RETRY)
                    return
                # The version is too old, or the kind was removed: relist. After any other failure the watch resumes.
                if error.kind in (RefusalKind.GONE, RefusalKind.NOT_FOUND):
                    self._position = None
            self.is_answered, self.failure = False, str(error)
            self._failures += 1
            if self._failures >= LIST_AFTER:
                self._position = None
            self.report.watch_failed(self.kind.name, error)
            # With jitter, so that not all watches return at once to a server that has just restarted.
            wait = self.retries.failed(clock.jitter())
            await clock.sleep(Seconds(wait + capped_retry_after(error.retry_after)))

    def _synced(self, on_synced: Callable[[], None]) -> None:
        on_synced()
        self._taken = self._begun
        self._listed.set()

    @property
    def _must_list(self) -> bool:
        return self._position is None or self._taken < self._wanted

    def _restart(self) -> None:
        self.reset_versions()
        self.report.watch_restored(self.kind.name)
        self.on_restored()

    def _go_missing(self, on_synced: Callable[[], None]) -> None:
        self.is_answered, is_requested = True, self._taken < self._wanted
        if not self.is_missing:
            self.is_missing = is_requested = True
            self.forget_all()
            self.report.watch_missing(self.kind.name)
        # Not at every check: ``on_synced`` has already run for the empty list, unless a new one was requested.
        self._synced(on_synced if is_requested else lambda: None)

    async def _list(self, api: KubernetesApi) -> None:
        listed, gone, reads_all = set[ObjectName](), dict(self._gone), self._position is None
        continue_token = ""
        while True:
            page = await self._page(api, {"continue": continue_token} if continue_token else {})
            # Compare versions with those known before the list started.
            if self._is_restored(page, gone):
                self._restart()
                # Restart from the first page, whose objects may have been skipped as older than the known ones.
                listed, gone, continue_token = set(), {}, ""
                continue
            listed |= await self._take(page, reread=reads_all)
            continue_token = page.continue_token
            if not continue_token:
                break
        self._position = page.version
        self.newest = number(page.version)
        # Missed deletions reach ``on_change`` from here, so a lost event only causes a delay. Keep objects newer than
        # the list.
        self.forget_unlisted(listed, self.newest)
        self.is_missing = False
        self.report.watch_listed(self.kind.name, len(listed))

    async def _check_store(self, api: KubernetesApi) -> None:
        """Relist in this round if the store is older than the last watch, like after a restore."""
        # One object is enough to get the version of the store.
        page = await api.page(ApiCall("GET", self.kind.path, LIST_TIMEOUT, query={"limit": "1", **self.kind.query}))
        if number(page.version) < number(self._position) or self._is_restored(page, self._gone):
            self._position = None

    def _is_restored(self, page: Page, gone: Mapping[str, int]) -> bool:
        """Return True if a page shows an earlier state of the store; ``gone`` are the UIDs of objects known to be
        deleted before it was requested, with the versions of their deletions.
        """
        page_version = number(page.version)
        versions = [(name_of(obj), uid_of(obj), version_of(obj)) for obj in page.objects]
        versions += [(unreadable.name, unreadable.uid, unreadable.version) for unreadable in page.unreadable]
        return page_version < self.newest or any(
            self._is_undeleted(uid, number(version), gone) or self.is_older(name, number(version), page_version)
            for name, uid, version in versions
        )

    def _is_undeleted(self, uid: str, version: int, gone: Mapping[str, int]) -> bool:
        # An object that lost the selected labels counts as deleted until it has them again, in a newer version.
        return uid in gone and not (self.kind.labels and version > gone[uid])

    async def _page(self, api: KubernetesApi, query: Mapping[str, str]) -> Page:
        while True:
            selection = {"limit": str(self._page_size), **self.kind.query, **query}
            longest = LONGEST_PAGE if self._page_size == 1 else LARGE_PAGE
            try:
                page = await api.page(ApiCall("GET", self.kind.path, LIST_TIMEOUT, query=selection, longest=longest))
            except PageTooLargeError:
                if self._page_size == 1:
                    raise
                self._page_size = max(1, self._page_size // 4)
            else:
                # Grow again: a few large objects must not make a list of all others take minutes.
                self._page_size = min(PAGE, 2 * self._page_size)
                return page

    async def _take(self, page: Page, *, reread: bool) -> set[ObjectName]:
        for count, obj in enumerate(page.objects, start=1):
            self.learn(obj, reread=reread)
            if count % AT_ONCE == 0:
                # Decoding a page of pods takes long enough to delay responses to agents.
                await asyncio.sleep(0)
        for unreadable in page.unreadable:
            self.learn_unreadable(unreadable, _identity(unreadable))
        return {*map(name_of, page.objects), *(unreadable.name for unreadable in page.unreadable)}

    async def _watch(self, api: KubernetesApi, clock: Clock) -> None:
        # With jitter, so that the watches of all kinds do not end at the same time.
        times = WatchTimes.spread(clock.jitter(), WATCH_SPAN)
        query = watch_query(self._position or "", times) | self.kind.query
        began, self.is_answered = clock.now(), True
        self.report.watch_delivered(self.kind.name)
        async with api.stream(ApiCall("GET", self.kind.path, times.silence, query=query)) as lines:
            async for line in lines:
                await self._line(line)
                self._failures = 0
                self.retries.succeeded()
                self.report.watch_delivered(self.kind.name)
        # Raise to trigger the backoff: otherwise such a server would cause a tight loop.
        if clock.now() - began < SHORTEST_WATCH:
            raise ApiUnknownError(f"the server ended the watch of {self.kind.name} immediately")

    async def _line(self, line: bytes) -> None:
        read_line = self.kind.read_line
        # Fast path for usual lines; the general path handles everything else, errors included.
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
        """Record that all changes up to ``version`` were applied; it is empty if the event has none."""
        # Bookmarks also count, so that the version of a kind that rarely changes does not expire.
        self._position = version or self._position
        self.newest = max(self.newest, number(version))

    def _require_younger(self, version: str) -> None:
        # A watch goes back in time only if the store was restored.
        if 0 < number(version) < number(self._position):
            self._position = None
            raise ApiUnknownError(f"watch of {self.kind.name}: version {version} is older than the watch itself")

    def _event(self, event: WatchEvent) -> None:
        if event.type == "DELETED":
            # A DELETED event may lack the version of the deletion; then use the newest that the watch has reached.
            self.forget_at(event.name, number(event.version or self._position))
        elif event.unreadable is not None:
            self.learn_unreadable(event.unreadable, _identity(event.unreadable))
        # A bookmark contains only a version.
        elif event.type != "BOOKMARK":
            self.learn(event.object)


def _identity(unreadable: Unreadable) -> Json:
    name = {"namespace": unreadable.name.namespace, "name": unreadable.name.name}
    return {"metadata": name | {"uid": unreadable.uid, "resourceVersion": unreadable.version}}
