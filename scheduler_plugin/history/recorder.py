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
from protocol.runtime.serving.fair_slots import FairSlots
from protocol.units import Instant, Seconds
from scheduler_plugin.databases import database_name
from scheduler_plugin.history.core.accumulation import GAP_INTERVALS
from scheduler_plugin.history.core.decoding import ClusterSample
from scheduler_plugin.history.core.history_log import Batch, HistoryLog
from scheduler_plugin.history.core.retention import RetentionBounds
from scheduler_plugin.history.core.samples import SECOND, Millis
from scheduler_plugin.history.sqlite.files import StoreError
from scheduler_plugin.history.sqlite.store import SqliteStore

LOG: Final = logging.getLogger("autoscale.history")
INTERVAL: Final = Seconds(10.0)
MAINTENANCE_INTERVAL: Final = Seconds(600.0)
AHEAD: Final = Seconds(3600.0)
"""If the clock gains more than this between two samples, it was set."""
MAX_QUERIES: Final = 64
"""Maximum number of agents queried per sample."""
_CONCURRENT: Final = 32
"""Maximum number of concurrent queries, and half of them for one namespace."""
_QUERIES_END: Final = Seconds(5.0)
"""When a sample no longer waits for agents, which tenants can make silent: samples that come late leave gaps."""

T = TypeVar("T")


class SampleError(Exception):
    """The cluster cannot be sampled now, and why."""


class SampleSource(Protocol):
    """Source of samples."""

    async def sample(self) -> ClusterSample:
        """Take a sample of the cluster. Raises ``SampleError``."""

    async def explanation(self, vm: JsonObject) -> Json | None:
        """The agent's ``/explain`` response for a database; None if it does not respond."""


class Recorder:
    """Records a cluster in the file ``path``. Run ``run`` in a task; it closes the file when it ends.

    ``labels`` are the keys of labels to record, ``interval`` is the sampling interval.
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
        """The present problem, as a sentence; empty while everything is recorded."""
        self._path, self._source, self._clock = path, source, clock
        self._interval, self._bounds = interval, bounds
        self._log = HistoryLog(round(interval * SECOND), labels)
        self._store: SqliteStore | None = None
        # A single thread, so that SQLite's connection is used by one at a time, in order.
        self._thread = ThreadPoolExecutor(1, "history")
        self._maintenance_at = Instant(0.0)
        self._sampled: tuple[Instant, Millis] | None = None
        self._latest: Millis | None = None
        self._behind: Instant | None = None

    async def run(self) -> None:
        """Record until cancelled, then write the rest and close the store."""
        try:
            while True:
                await self.record()
                await self._clock.sleep(self._interval)
        finally:
            # Write the open spans even after a failure.
            self._close()

    async def record(self) -> None:
        """Take one sample and write changes."""
        try:
            # Only the holder of the lock writes; any other recorder retries at each sample.
            store = self._store or await self._opened()
            sample = await self._source.sample()
            # After the sample, because the file may be removed while it is taken.
            store = await self._existing(store)
            await self._in_order(store, sample.at)
            # Query a few agents per sample: those with news first, then those queried longest ago.
            answers = await self._answers(sample)
            try:
                await self._in_thread(lambda: store.write(self._log.take(sample, answers)))
            finally:
                # Even after a failed write, because maintenance makes room on a full disk.
                await self._maintain(store, sample.at)
        # The next sample retries; the time until then is missing in the history.
        except (SampleError, StoreError) as error:
            self._note(str(error))
        else:
            self._note("")

    async def _in_order(self, store: SqliteStore, at: Millis) -> None:
        """Check that ``at`` is not before the history's last time. Raises ``StoreError`` if it is.

        If the clock stays behind for ``MAINTENANCE_INTERVAL``, the later times were wrong and are removed.
        """
        # Small steps back are normal with NTP; samples before the last one are skipped.
        now, tolerance = self._clock.now(), GAP_INTERVALS * self._interval
        if self._latest is not None and at < self._latest - tolerance * SECOND:
            self._behind = now if self._behind is None else self._behind
            # The clock may be wrong for a while, such as after a boot until NTP sets it.
            if now < self._behind + MAINTENANCE_INTERVAL:
                raise StoreError(f"the clock is {(self._latest - at) // SECOND} s before the end of the history")
            LOG.warning("the clock was set back: removing later times from the history")
            self._log.rewind()
            await self._in_thread(lambda: store.remove_after(at))
        self._latest, self._behind = at, None

    async def _maintain(self, store: SqliteStore, at: Millis) -> None:
        # With a clock years ahead, retention would remove everything.
        if self._was_set_ahead(at):
            self._maintenance_at = Instant(self._clock.now() + MAINTENANCE_INTERVAL)
        if self._clock.now() >= self._maintenance_at:
            self._maintenance_at = Instant(self._clock.now() + MAINTENANCE_INTERVAL)
            await self._in_thread(lambda: store.maintain(at))

    def _was_set_ahead(self, at: Millis) -> bool:
        """Return True if the clock has gained more than ``AHEAD`` since the last sample, or if this is the first."""
        now, before = self._clock.now(), self._sampled
        self._sampled = now, at
        return before is None or at - before[1] > (now - before[0] + AHEAD) * SECOND

    async def _opened(self) -> SqliteStore:
        store = await self._in_thread(lambda: SqliteStore(self._path, self._clock.wall, self._bounds))
        for note in store.notes:
            LOG.warning("history", extra={"note": note})
        # From the store, because a restarted recorder must not write times before the last one.
        self._store, self._latest = store, await self._in_thread(store.latest)
        return store

    async def _existing(self, store: SqliteStore) -> SqliteStore:
        """The store, or a new one if its file was removed."""
        if not await self._in_thread(store.is_gone):
            return store
        LOG.warning("the history's file was removed: creating a new one")
        # Before the calls below: if one fails, the next sample opens the store.
        self._store = None
        await self._in_thread(store.close)
        return await self._opened()

    async def _answers(self, sample: ClusterSample) -> dict[ObjectName, Json]:
        vms = self._log.vms_to_query(sample, MAX_QUERIES)
        slots, answers, is_done = FairSlots(_CONCURRENT), dict[ObjectName, Json | None](), asyncio.Event()

        async def ask(vm: JsonObject) -> None:
            name = database_name(vm)
            async with slots.slot(name.namespace):
                answers[name] = await self._source.explanation(vm)
            if len(answers) == len(vms):
                is_done.set()

        asking = [asyncio.create_task(ask(vm)) for vm in vms]
        if asking:
            try:
                await self._clock.wait(is_done, Instant(self._clock.now() + _QUERIES_END))
            finally:
                for task in asking:
                    task.cancel()
                await asyncio.wait(asking)
        for task in asking:
            if not task.cancelled():
                task.result()  # raises what is not an agent's silence
        return {vm: answer for vm, answer in answers.items() if answer is not None}

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    def _note(self, trouble: str) -> None:
        # Log once per problem.
        if trouble and trouble != self.trouble:
            LOG.warning("not recording", extra={"reason": trouble})
        elif self.trouble and not trouble:
            LOG.info("recording again")
        self.trouble = trouble

    def _close(self) -> None:
        """Write the rest. This blocks the event loop, because the task is being cancelled."""
        if self._store is not None:
            self._thread.submit(_write_and_close, self._store, self._log.end()).result()
        self._thread.shutdown()


def _write_and_close(store: SqliteStore, rest: Batch) -> None:
    try:
        store.write(rest)
    except StoreError as error:
        LOG.warning("cannot write the end of the history", extra={"reason": str(error)})
    finally:
        store.close()
