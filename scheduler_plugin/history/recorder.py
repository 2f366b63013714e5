"""Samples a cluster and writes changes to a store."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, Protocol, TypeVar

from protocol.kubernetes.objects import Json, JsonObject
from protocol.messages import ObjectName
from protocol.runtime.clock import Clock
from protocol.units import Instant, Seconds
from scheduler_plugin.databases import database_name
from scheduler_plugin.history.core.accumulation import GAP_INTERVALS
from scheduler_plugin.history.core.history_log import Batch, HistoryLog
from scheduler_plugin.history.core.looks import ClusterSample
from scheduler_plugin.history.core.retention import RetentionBounds
from scheduler_plugin.history.core.samples import SECOND, Millis
from scheduler_plugin.history.sqlite.files import StoreError
from scheduler_plugin.history.sqlite.store import SqliteStore

LOG: Final = logging.getLogger("autoscale.history")
INTERVAL: Final = Seconds(10.0)
UPKEEP: Final = Seconds(600.0)
AHEAD: Final = Seconds(3600.0)
"""A clock that gains this much between two samples was set."""
MOST_ASKED: Final = 64
"""Maximum number of agents queried per sample."""
_TOGETHER: Final = 16

T = TypeVar("T")


class LookError(Exception):
    """The cluster cannot be sampled now; the message says why."""


class SampleSource(Protocol):
    """Source of samples."""

    async def look(self) -> ClusterSample:
        """A sample of the cluster. Raises ``LookError``."""

    async def account(self, vm: JsonObject) -> Json | None:
        """The agent's ``/explain`` response for a database; None if none."""


class Recorder:
    """Records a cluster to the file ``path``. Run ``run`` in a task; it closes the file at its end.

    ``labels`` are the recorded label keys, ``interval`` is the sampling interval.
    """

    def __init__(  # noqa: PLR0913 - each is a setting of its own
        self,
        path: Path,
        source: SampleSource,
        clock: Clock,
        *,
        labels: Sequence[str] = (),
        interval: Seconds = INTERVAL,
        bounds: RetentionBounds | None = None,
    ) -> None:
        self.trouble = ""
        """What is wrong now, for people; empty while all is recorded."""
        self._path, self._source, self._clock = path, source, clock
        self._interval, self._bounds = interval, bounds
        self._log = HistoryLog(round(interval * SECOND), labels)
        self._store: SqliteStore | None = None
        # One thread: SQLite's connection is used from one at a time, in order.
        self._thread = ThreadPoolExecutor(1, "history")
        self._upkeep_at = Instant(0.0)
        self._looked: tuple[Instant, Millis] | None = None
        self._latest: Millis | None = None
        self._behind: Instant | None = None

    async def run(self) -> None:
        """Record until cancelled, then write the rest and close the store."""
        try:
            while True:
                await self.record()
                await self._clock.sleep(self._interval)
        finally:
            # Write the open spans also after a failure.
            self._close()

    async def record(self) -> None:
        """Take one sample and write changes."""
        try:
            # Only the lock's holder writes; another recorder retries at each sample.
            store = self._store or await self._opened()
            look = await self._source.look()
            # After the sample: the file may be removed during it.
            store = await self._existing(store)
            await self._in_order(store, look.at)
            # A few agents per sample: news first, then longest ago.
            answers = await self._answers(look)
            try:
                await self._in_thread(lambda: store.write(self._log.take(look, answers)))
            finally:
                # Also after a failed write: on a full disk upkeep makes room.
                await self._run_upkeep(store, look.at)
        # Retried at the next sample; the time until then is unknown.
        except (LookError, StoreError) as error:
            self._note(str(error))
        else:
            self._note("")

    async def _in_order(self, store: SqliteStore, at: Millis) -> None:
        """Check that ``at`` is after the history's last time. If the clock stays behind for ``UPKEEP``, the later times
        were wrong and are removed. Raises ``StoreError`` until then.
        """
        # Small steps back are normal with NTP; spans skip such samples.
        now, tolerance = self._clock.now(), GAP_INTERVALS * self._interval
        if self._latest is not None and at < self._latest - tolerance * SECOND:
            self._behind = now if self._behind is None else self._behind
            # The clock may be wrong for a moment, such as after a boot until NTP sets it.
            if now < self._behind + UPKEEP:
                raise StoreError(f"the clock is {(self._latest - at) // SECOND} s before what the history has")
            LOG.warning("the clock was set back: what the history has of later times is removed")
            self._log.rewind()
            await self._in_thread(lambda: store.forget_after(at))
        self._latest, self._behind = at, None

    async def _run_upkeep(self, store: SqliteStore, at: Millis) -> None:
        # With a clock years ahead, retention would remove everything.
        if self._was_set_ahead(at):
            self._upkeep_at = Instant(self._clock.now() + UPKEEP)
        if self._clock.now() >= self._upkeep_at:
            self._upkeep_at = Instant(self._clock.now() + UPKEEP)
            await self._in_thread(lambda: store.upkeep(at))

    def _was_set_ahead(self, at: Millis) -> bool:
        """Return True if the clock has gained more than ``AHEAD`` since the last sample, or if this is the first."""
        now, before = self._clock.now(), self._looked
        self._looked = now, at
        # Unknown at the first sample.
        return before is None or at - before[1] > (now - before[0] + AHEAD) * SECOND

    async def _opened(self) -> SqliteStore:
        store = await self._in_thread(lambda: SqliteStore(self._path, self._clock.wall, self._bounds))
        for note in store.notes:
            LOG.warning("history", extra={"note": note})
        # From the store: a restarted recorder must not write before its last time.
        self._store, self._latest = store, await self._in_thread(store.latest)
        return store

    async def _existing(self, store: SqliteStore) -> SqliteStore:
        """The store; a new one if its file was removed."""
        if not await self._in_thread(store.is_gone):
            return store
        LOG.warning("the history's file was removed: a new one begins")
        # First, so that a failure below reopens the store at the next sample.
        self._store = None
        await self._in_thread(store.close)
        return await self._opened()

    async def _answers(self, look: ClusterSample) -> dict[ObjectName, Json]:
        limit = asyncio.Semaphore(_TOGETHER)

        async def ask(vm: JsonObject) -> tuple[ObjectName, Json | None]:
            async with limit:
                return database_name(vm), await self._source.account(vm)

        accounts = await asyncio.gather(*(ask(vm) for vm in self._log.asks(look, MOST_ASKED)))
        return {vm: answer for vm, answer in accounts if answer is not None}

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    def _note(self, trouble: str) -> None:
        # Log once per problem.
        if trouble and trouble != self.trouble:
            LOG.warning("nothing is recorded until this ends", extra={"reason": trouble})
        elif self.trouble and not trouble:
            LOG.info("recording again")
        self.trouble = trouble

    def _close(self) -> None:
        """Write the rest, blocking the event loop at its end."""
        if self._store is not None:
            # The task is being cancelled.
            self._thread.submit(_write_and_close, self._store, self._log.end()).result()
        self._thread.shutdown()


def _write_and_close(store: SqliteStore, rest: Batch) -> None:
    try:
        store.write(rest)
    except StoreError as error:
        LOG.warning("the end of the history is not written", extra={"reason": str(error)})
    finally:
        store.close()
