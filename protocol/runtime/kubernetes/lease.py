"""Leader election: of several replicas of a program, only the holder of the Lease is active.

The holder counts its time from before its call, all others from when they observe the renewal. So the holder stops
writing before another starts, regardless of their clocks.
A holder that shuts down releases the Lease; one that is killed is succeeded after the Lease's duration.
Every write by the holder first checks ``remaining``, and must not take longer than that.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Never

from protocol.kubernetes.api import ApiCall, ApiError, ApiRefusedError, KubernetesApi, Tolerating
from protocol.kubernetes.objects import Json, JsonObject, child, integer, number, text, uid_of, version_of
from protocol.kubernetes.refusals import RefusalKind
from protocol.kubernetes.resources import LEASES, MERGE_PATCH
from protocol.kubernetes.timestamps import micro_timestamp
from protocol.messages import ObjectName
from protocol.runtime.clock import Clock
from protocol.units import Instant, Seconds

LOG: Final = logging.getLogger("autoscale.lease")

CALL_TIMEOUT: Final = Seconds(2.0)
SPARE: Final = Seconds(1.0)
RETRY: Final = Seconds(0.5)

NEVER: Final = Instant(float("-inf"))
# The API server rejects a duration of 0.
RELEASED: Final[Json] = {"holderIdentity": "", "leaseDurationSeconds": 1}


@dataclass(frozen=True, slots=True)
class LeaseTerms:
    """Timing of a Lease. ``duration`` (whole seconds): without renewal, a holder counts as active for this time.
    ``renew_every``: interval of renewals. ``poll_every``: interval at which the others read the Lease, and thus the
    maximum time that a released Lease stays free.
    ``is_fenced``: the holders' writes are safe by themselves, so two holders for a short time do no harm. Then a
    process that has just started immediately takes a Lease that is missing or free.
    """

    name: ObjectName
    duration: Seconds = Seconds(9.0)
    renew_every: Seconds = Seconds(2.0)
    poll_every: Seconds = Seconds(2.0)
    is_fenced: bool = False

    @property
    def spare(self) -> Seconds:
        """The holder stops this long before the Lease's end, to allow for late packets and slow clocks."""
        # A ninth, to scale with a short Lease: 1 s of the default 9 s.
        return Seconds(min(SPARE, self.duration / 9))

    @property
    def retry_every(self) -> Seconds:
        """Delay before a failed renewal is retried."""
        return Seconds(min(RETRY, self.renew_every))

    @property
    def call_timeout(self) -> Seconds:
        """Timeout of one call about the Lease: short enough to retry before the Lease ends."""
        return Seconds(min(CALL_TIMEOUT, self.duration * 2 / 9))


class NotLeadingError(Exception):
    """This process does not hold the Lease (any more), so nothing was written."""


@dataclass(frozen=True, slots=True)
class _LeaseState:
    """A state of the Lease, first observed at ``at``; without a ``uid`` no Lease exists.

    ``is_restored``: a newer state had been observed before. ``is_followed``: this process has observed a holder of this
    very Lease, and no sign of a restored store since.
    """

    uid: str
    version: str
    at: Instant
    is_restored: bool
    is_followed: bool


class Leadership:
    """Acquires and renews the Lease, and tracks how long this process may still write.

    ``on_change`` is called with True or False when this process starts or stops leading; ``on_restored`` when the Lease
    is older than before, because the cluster's store was restored. ``holder`` is the last known leader. ``term`` counts
    how often this process has started to lead. It stops ``spare`` before the Lease's end. ``namespace`` is the
    namespace of the Lease and of all replicas; ``path`` is the Lease's path in ``api``.
    """

    def __init__(self, api: KubernetesApi, clock: Clock, terms: LeaseTerms, identity: str) -> None:
        self.identity = identity
        self.on_change: Callable[[bool], None] = lambda _: None
        self.on_restored: Callable[[], None] = lambda: None
        self.api = api
        self._clock = clock
        self._terms = terms
        self.spare = terms.spare
        self.namespace = terms.name.namespace
        self.term = 0
        self._until = NEVER
        self._notified = 0
        self._seen: _LeaseState | None = None
        self._version = ""
        self._newest = 0
        self._free_in = Seconds(0.0)
        self._hint = asyncio.Event()
        self.holder = ""

    @property
    def leads(self) -> bool:
        """True if this process may write."""
        return self.remaining > 0

    @property
    def remaining(self) -> Seconds:
        """The time for which this process may still write; 0 if it may not."""
        return Seconds(max(0.0, self._until - self._clock.now()))

    def allowed(self, wanted: Seconds) -> Seconds:
        """The timeout for a write, at most ``wanted``. Raises ``NotLeadingError``."""
        remaining = self.remaining
        if remaining <= 0:
            raise NotLeadingError("this process does not hold the Lease")
        return min(wanted, remaining)

    async def run(self, ready: asyncio.Event | None = None) -> Never:
        """Acquire and renew the Lease forever. Until ``ready`` is set, only read it; call ``poll`` after setting it."""
        while True:
            self._notify()
            is_done = False
            try:
                # A renewal whose answer is lost does not count.
                await self._turn(may_take=ready is None or ready.is_set())
                is_done = True
            except ApiError as error:
                LOG.warning("cannot read or renew the Lease", extra={"reason": str(error)})
            self._notify()
            await self._clock.wait(self._hint, Instant(self._clock.now() + self._pause(is_done)))
            self._hint.clear()

    def poll(self) -> None:
        """Read the Lease immediately if this process does not lead, because it may be free."""
        if not self.leads:
            self._hint.set()

    async def release(self) -> None:
        """Release the Lease if this process holds it, so that a successor need not wait. Never raises ``ApiError``."""
        # From now on no write may start, regardless of the API server's answer.
        version, self._until = self.leads and self._version, NEVER
        self._notify()
        if not version:  # an unconditional write could remove a new holder
            return
        try:
            await self._give_back()
        except ApiError as error:
            LOG.warning("cannot release the Lease", extra={"reason": str(error)})

    async def _give_back(self) -> None:
        """Write an empty holder, even if a final renewal has changed the version meanwhile."""
        try:
            await self._write(RELEASED)
        except ApiRefusedError as error:
            if error.kind is not RefusalKind.CONFLICT:
                raise
            lease, _ = await self._read()
            if lease is None or self.holder != self.identity:
                return
            self._version = version_of(lease)
            await self._write(RELEASED)

    def _pause(self, is_done: bool) -> Seconds:
        """Delay until the next turn. A holder wakes at the latest when its time to write ends, to report that."""
        if not self.leads:
            return Seconds(min(self._terms.poll_every, self._free_in or self._terms.poll_every))
        return Seconds(min(self._terms.renew_every if is_done else self._terms.retry_every, self.remaining))

    async def _turn(self, *, may_take: bool) -> None:
        self._free_in, was_leading = Seconds(0.0), self.leads
        # Usually a holder only writes, without a read.
        if was_leading and self._version and await self._take({}):
            return
        # Not the holder, or the renewal conflicted: decide by the stored Lease.
        lease, observed = await self._read()
        self._free_in = self._until_free(lease, observed, was_leading=was_leading)
        if self._free_in:
            self._until = NEVER
        elif not may_take:
            return
        elif lease is None:
            await self._create()
        else:
            self._version = version_of(lease)
            # Like in client-go, a holder that takes its own Lease again is not a transition.
            turns = integer(lease, "spec", "leaseTransitions") + 1
            begins: Json = {"acquireTime": self._stamp(), "leaseTransitions": turns}
            await self._take({} if self.holder == self.identity else begins)

    async def _read(self) -> tuple[JsonObject | None, _LeaseState]:
        with Tolerating(RefusalKind.NOT_FOUND):
            return self._note(await self.api.call(ApiCall("GET", self.path, self._terms.call_timeout)))
        return self._note(None)

    def _note(self, lease: JsonObject | None) -> tuple[JsonObject | None, _LeaseState]:
        uid, version = ("", "") if lease is None else (uid_of(lease), version_of(lease))
        observed, was_held = self._seen, bool(self.holder)
        self.holder = "" if lease is None else text(lease, "spec", "holderIdentity")
        if observed is None or (observed.uid, observed.version) != (uid, version):
            # Versions only grow, unless the store was restored from a backup.
            is_restored = number(version) < self._newest
            # A recreated Lease has another UID: others may have held the previous one.
            is_same = observed is not None and observed.uid == uid != "" and not is_restored
            is_followed = observed is not None and is_same and (observed.is_followed or was_held)
            observed = self._seen = _LeaseState(uid, version, self._clock.now(), is_restored, is_followed)
            if is_restored and lease is not None:
                self.on_restored()
        self._newest = number(version)
        return lease, observed

    def _until_free(self, lease: JsonObject | None, seen: _LeaseState, *, was_leading: bool) -> Seconds:
        """Time until the Lease may be taken; 0 if its holder has released it or is this process.

        If the Lease disappears while this process leads, no other can have held it.
        """
        # A Lease counts as released only if this process has observed its holder. One that is older than before,
        # missing, recreated, or free when first observed may come from a restored store: another process may still
        # consider itself the holder. So it is free only a whole duration after it was first observed in this state.
        is_known = seen.is_followed or (not seen.is_restored and (self._terms.is_fenced or bool(self.holder)))
        if self.holder in ("", self.identity) and (was_leading or is_known):
            return Seconds(0.0)
        duration = 1 if lease is None else max(1, integer(child(lease, "spec"), "leaseDurationSeconds"))
        # A released Lease has a duration of 1 s; a process that did not observe its holder assumes at least its own.
        duration = duration if seen.is_followed else max(duration, int(self._terms.duration))
        # Count from when this process observed the renewal, not from the time in the Lease, because clocks differ.
        return Seconds(max(0.0, seen.at + duration - self._clock.now()))

    async def _create(self) -> None:
        # The Lease counts from before the call, so that the holder stops before others may start.
        sent_at = self._clock.now()
        name = self._terms.name
        metadata = {"name": name.name, "namespace": name.namespace}
        body: Json = {
            "apiVersion": LEASES.api_version,
            "kind": LEASES.kind,
            "metadata": metadata,
            "spec": {**self._claim(), "acquireTime": self._stamp(), "leaseTransitions": 0},
        }
        lease = await self.api.call(ApiCall("POST", LEASES.path(name.namespace), self._terms.call_timeout, body=body))
        self._held(sent_at, lease)

    async def _take(self, more: Json) -> bool:
        """Renew the Lease or take it over; return False if it has changed since it was read."""
        sent_at = self._clock.now()
        try:
            lease = await self._write({**self._claim(), **more})
        except ApiRefusedError as error:
            if error.kind is RefusalKind.NOT_FOUND:
                self._until = NEVER
            elif error.kind is not RefusalKind.CONFLICT:
                raise
            self._version = ""
            return False
        self._held(sent_at, lease)
        return True

    async def _write(self, spec: Json) -> JsonObject:
        # Include the version that was read, so that only one of several replicas can take the Lease.
        body: Json = {"metadata": {"resourceVersion": self._version}, "spec": spec}
        return await self.api.call(
            ApiCall("PATCH", self.path, self._terms.call_timeout, body=body, content_type=MERGE_PATCH)
        )

    def _held(self, asked: Instant, lease: JsonObject) -> None:
        self._version = version_of(lease)
        self._newest = number(self._version)
        self._seen = _LeaseState(uid_of(lease), self._version, self._clock.now(), is_restored=False, is_followed=True)
        self.holder = self.identity
        if not self.leads:
            # Just acquired, or the time ran out before the renewal was answered. Others may have led in between, so
            # this process's earlier knowledge is void.
            self.term += 1
        self._until = Instant(asked + self._terms.duration - self._terms.spare)

    def _claim(self) -> Json:
        duration = int(self._terms.duration)
        return {"holderIdentity": self.identity, "leaseDurationSeconds": duration, "renewTime": self._stamp()}

    def _stamp(self) -> str:
        return micro_timestamp(self._clock.wall())

    @property
    def path(self) -> str:
        """The path of the Lease."""
        return LEASES.path(self._terms.name.namespace, self._terms.name.name)

    def _notify(self) -> None:
        # Compare terms, not booleans: a Lease lost and acquired again between two calls is reported as both.
        before, self._notified = self._notified, self.term if self.leads else 0
        if before and before != self._notified:
            self.on_change(False)
        if self._notified and before != self._notified:
            self.on_change(True)
