"""A queue of object names to reconcile, without duplicates, and with retries after failures.

A name is never processed twice at the same time; if added meanwhile, it is processed again afterwards. Failures are
isolated per object: an unexpected error is logged with its object, and the others continue. Of the namespaces, the one
with the fewest names in progress comes first, so that neither thousands of objects nor slow ones delay those of others.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable
from heapq import heappop, heappush
from itertools import count
from typing import Final

from protocol.backoff import Backoff
from protocol.kubernetes.api import ApiError
from protocol.kubernetes.refusals import capped_retry_after
from protocol.messages import ObjectName
from protocol.runtime.clock import Clock
from protocol.runtime.serving.fair_slots import next_owner
from protocol.units import Instant, Seconds

# A failed name is retried after 0.25 s, doubled each time, up to 10 s, plus jitter.
BACKOFF: Final = Backoff(Seconds(0.25), Seconds(10.0))
_AT_ONCE: Final = Seconds(0.0)

Reconcile = Callable[[ObjectName], Awaitable[None]]
"""Brings one object to its desired state. The queue retries it after any exception."""

_log = logging.getLogger(__name__)


class WorkQueue:
    """The queue of one controller, for use in one event loop.

    ``waiting_workers`` is the number of its workers if they wait for programs of tenants (0: they do not). Then those
    busy with one namespace are at most half of them.
    """

    def __init__(self, clock: Clock, waiting_workers: int = 0) -> None:
        self._clock = clock
        self._waiting_workers = waiting_workers
        self._due: dict[ObjectName, Instant] = {}
        # An entry is valid only while ``_due`` has the same instant; outdated ones stay until they are due, so that
        # adding a name needs no search.
        self._heap: list[tuple[Instant, int, ObjectName]] = []
        self._order = count()
        # Names that are due, by namespace. The namespace whose turn was longest ago comes first.
        self._ready: OrderedDict[str, OrderedDict[ObjectName, None]] = OrderedDict()
        self._working: set[ObjectName] = set()
        self._busy: Counter[str] = Counter()  # number of these by namespace
        self._deferred: set[ObjectName] = set()
        self._failures: dict[ObjectName, int] = {}
        self._changed = asyncio.Event()
        self._single_waiter = asyncio.Lock()

    def add(self, name: ObjectName, after: Seconds = _AT_ONCE) -> None:
        """Queue ``name`` for after ``after`` seconds; if already queued, the earlier time counts."""
        due = Instant(self._clock.now() + after)
        if name not in self._due or due < self._due[name]:
            self._due[name] = due
            # The counter keeps the order of equal instants, and avoids comparing names.
            heappush(self._heap, (due, next(self._order), name))
        self._changed.set()

    async def take(self) -> ObjectName:
        """The next name to reconcile; waits for one. Call ``done`` or ``failed`` afterwards."""
        async with self._single_waiter:  # only one worker waits at a time; otherwise each added name would wake all
            while True:
                # Clear before looking, so that a name added meanwhile ends the wait below.
                self._changed.clear()
                name, due = self._next()
                if name is not None:
                    del self._due[name]
                    self._working.add(name)
                    self._busy[name.namespace] += 1
                    return name
                await self._clock.wait(self._changed, due)

    def _next(self) -> tuple[ObjectName | None, Instant | None]:
        """The name whose turn it is, if any is due, and else when the next one is."""
        now = self._clock.now()
        while self._heap:
            due, _, name = self._heap[0]
            # The entry is outdated if the name was queued for an earlier time.
            counts = self._due.get(name) == due
            if counts and due > now:
                break
            heappop(self._heap)
            if counts and name in self._working:
                # Hold it back while in progress; ``_free`` queues it again.
                self._deferred.add(name)
            elif counts:
                self._ready.setdefault(name.namespace, OrderedDict())[name] = None
        later = None, self._heap[0][0] if self._heap else None
        if not self._ready:
            return later
        namespace = next_owner(self._ready, self._busy)
        # As in ``FairSlots``: only as many as are idle.
        if self._waiting_workers and self._busy[namespace] >= self._waiting_workers - len(self._working):
            return later
        names = self._ready[namespace]
        name, _ = names.popitem(last=False)
        self._ready.move_to_end(namespace)
        if not names:
            del self._ready[namespace]
        return name, None

    async def serve(
        self,
        reconcile: Reconcile,
        expected: type[Exception] | tuple[type[Exception], ...] = ApiError,
    ) -> None:
        """Reconcile names one by one until cancelled. Failures are retried, and logged unless they are ``expected``
        errors.
        """
        while True:
            name = await self.take()
            try:
                await reconcile(name)
            except expected as error:
                self.failed(name, error.retry_after if isinstance(error, ApiError) else None)
            except Exception:  # noqa: BLE001 - one object must not end the controller of all others
                _log.exception("cannot reconcile an object", extra={"object": str(name)})
                self.failed(name)
            else:
                self.done(name)

    def done(self, name: ObjectName) -> None:
        """Record that ``name`` was reconciled."""
        self._failures.pop(name, None)
        self._free(name)
        # A worker may be waiting for this very name.
        self._changed.set()

    def failed(self, name: ObjectName, retry_after: Seconds | None = None) -> None:
        """Record that reconciling ``name`` failed; retry it after a backoff, and not before ``retry_after``."""
        self._failures[name] = failures = self._failures.get(name, 0) + 1
        self._free(name)
        wait = BACKOFF.delay(failures, self._clock.jitter())
        self.add(name, Seconds(wait + capped_retry_after(retry_after)))

    def _free(self, name: ObjectName) -> None:
        self._working.discard(name)
        self._busy[name.namespace] -= 1
        if not self._busy[name.namespace]:
            del self._busy[name.namespace]
        if name in self._deferred:
            self._deferred.discard(name)
            # It became due while in progress, so queue it again.
            heappush(self._heap, (self._due[name], next(self._order), name))
