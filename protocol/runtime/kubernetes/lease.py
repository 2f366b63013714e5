"""Leader election: of several replicas of a program the one that holds the Lease acts (active and standby).

The holder counts its time from before its call, everyone else from when the renewal was seen, so that the holder stops
writing before another begins, whatever the clocks say.
A holder that ends in order gives the Lease back; one that is killed is succeeded after the Lease's duration.
Every write by the holder checks ``remaining`` first and takes no longer than that.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Never

from protocol.kubernetes.api import ApiCall, ApiError, ApiRefusedError, KubernetesApi
from protocol.kubernetes.objects import Json, JsonObject, child, number, text, uid_of, version_of, whole
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
GIVEN_BACK: Final[Json] = {"holderIdentity": "", "leaseDurationSeconds": 1}


@dataclass(frozen=True, slots=True)
class LeaseTerms:
    """Times of a Lease. ``duration``, in whole seconds: a holder that does not renew is believed to act for that time.
    ``renew_every``: interval of its renewals. ``look_every``: interval at which the others read the Lease, and so the
    longest time that a Lease which was given back stays free.
    ``is_fenced``: the holders' writes are safe in themselves, so two holders for a moment do no harm. Then a process
    that has just started takes a Lease that is absent or free at once.
    """

    name: ObjectName
    duration: Seconds = Seconds(9.0)
    renew_every: Seconds = Seconds(2.0)
    look_every: Seconds = Seconds(2.0)
    is_fenced: bool = False

    @property
    def spare(self) -> Seconds:
        """Time before the Lease's end at which the holder stops: a late packet, a slow clock."""
        # A ninth, so that a short Lease keeps its proportions: 1 s of the default 9 s.
        return Seconds(min(SPARE, self.duration / 9))

    @property
    def retry_every(self) -> Seconds:
        """Delay before a failed renewal is repeated."""
        return Seconds(min(RETRY, self.renew_every))

    @property
    def call_timeout(self) -> Seconds:
        """Time-out of one call about the Lease: less than the Lease lasts, so that it can be repeated."""
        return Seconds(min(CALL_TIMEOUT, self.duration * 2 / 9))


class NotLeadingError(Exception):
    """This process does not hold the Lease (any more): nothing was written."""


@dataclass(frozen=True, slots=True)
class _Seen:
    """A state of the Lease, and when it was first seen; without a ``uid`` no Lease exists.

    ``is_restored``: a newer state had been seen before. ``is_followed``: this process has seen this very Lease held,
    and no sign of a restored store since.
    """

    uid: str
    version: str
    at: Instant
    is_restored: bool
    is_followed: bool


class Leadership:
    """Acquires the Lease, renews it, and knows the time for which this process may still write.

    ``on_change`` is called with whether this process leads, whenever that changes; ``on_restored`` when the Lease is
    older than it was: the cluster's store was restored. ``holder`` is who was last seen to lead.
    ``term`` counts how often this process has begun to lead. ``spare`` is how long before the Lease's end it stops.
    ``namespace`` is that of the Lease and of all replicas; ``path`` is the Lease's, read and written through ``api``.
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
        self._told = 0
        self._seen: _Seen | None = None
        self._version = ""
        self._newest = 0
        self._free_in = Seconds(0.0)
        self._hint = asyncio.Event()
        self.holder = ""

    @property
    def leads(self) -> bool:
        """True if this process may write now."""
        return self.remaining > 0

    @property
    def remaining(self) -> Seconds:
        """Time for which this process may still write; 0 if it may not."""
        return Seconds(max(0.0, self._until - self._clock.now()))

    def allowed(self, wanted: Seconds) -> Seconds:
        """Time-out of a write, ``wanted`` at most. Raises ``NotLeadingError``."""
        remaining = self.remaining
        if remaining <= 0:
            raise NotLeadingError("this process does not hold the Lease")
        return min(wanted, remaining)

    async def run(self, ready: asyncio.Event | None = None) -> Never:
        """Acquire and renew the Lease, for ever. Until ``ready`` is set it is only read; call ``look`` once it is."""
        while True:
            self._tell()
            is_done = False
            try:
                # An answer that is lost counts as a renewal that did not happen.
                await self._turn(may_take=ready is None or ready.is_set())
                is_done = True
            except ApiError as error:
                LOG.warning("the Lease cannot be renewed or read", extra={"reason": str(error)})
            self._tell()
            await self._clock.wait(self._hint, Instant(self._clock.now() + self._pause(is_done)))
            self._hint.clear()

    def look(self) -> None:
        """Read the Lease at once if another holds it: it may be free."""
        if not self.leads:
            self._hint.set()

    async def release(self) -> None:
        """Give the Lease back if it is ours, so that a successor need not wait. Never raises ``ApiError``."""
        # A write must not begin once the Lease is on its way back, whatever the API server answers.
        version, self._until = self.leads and self._version, NEVER
        self._tell()
        if not version:  # an unconditional write could take the Lease from its new holder
            return
        try:
            await self._give_back()
        except ApiError as error:
            LOG.warning("the Lease could not be given back", extra={"reason": str(error)})

    async def _give_back(self) -> None:
        """Write an empty holder, even if a last renewal has changed the version meanwhile."""
        try:
            await self._write(GIVEN_BACK)
        except ApiRefusedError as error:
            if error.kind is not RefusalKind.CONFLICT:
                raise
            lease, _ = await self._read()
            if lease is None or self.holder != self.identity:
                return
            self._version = version_of(lease)
            await self._write(GIVEN_BACK)

    def _pause(self, is_done: bool) -> Seconds:
        """Delay until the next turn. A holder wakes when its time to write ends at the latest, to report that."""
        if not self.leads:
            return Seconds(min(self._terms.look_every, self._free_in or self._terms.look_every))
        return Seconds(min(self._terms.renew_every if is_done else self._terms.retry_every, self.remaining))

    async def _turn(self, *, may_take: bool) -> None:
        self._free_in, was_leading = Seconds(0.0), self.leads
        # The usual turn of a holder is one write without a read.
        if was_leading and self._version and await self._take({}):
            return
        # Not the holder, or the renewal met a conflict: decide by the Lease as it is stored.
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
            # As client-go counts: a holder that takes its own Lease again is no transition.
            turns = whole(lease, "spec", "leaseTransitions") + 1
            begins: Json = {"acquireTime": self._stamp(), "leaseTransitions": turns}
            await self._take({} if self.holder == self.identity else begins)

    async def _read(self) -> tuple[JsonObject | None, _Seen]:
        try:
            lease = await self.api.call(ApiCall("GET", self.path, self._terms.call_timeout))
        except ApiRefusedError as error:
            if error.kind is RefusalKind.NOT_FOUND:
                return self._note(None)
            raise
        return self._note(lease)

    def _note(self, lease: JsonObject | None) -> tuple[JsonObject | None, _Seen]:
        uid, version = ("", "") if lease is None else (uid_of(lease), version_of(lease))
        observed, was_held = self._seen, bool(self.holder)
        self.holder = "" if lease is None else text(lease, "spec", "holderIdentity")
        if observed is None or (observed.uid, observed.version) != (uid, version):
            # Versions only grow, unless the store was restored from a backup.
            is_restored = number(version) < self._newest
            # A Lease that was deleted and created again has another UID: others may have held the one before.
            is_same = observed is not None and observed.uid == uid != "" and not is_restored
            is_followed = observed is not None and is_same and (observed.is_followed or was_held)
            observed = self._seen = _Seen(uid, version, self._clock.now(), is_restored, is_followed)
            if is_restored and lease is not None:
                self.on_restored()
        self._newest = number(version)
        return lease, observed

    def _until_free(self, lease: JsonObject | None, seen: _Seen, *, was_leading: bool) -> Seconds:
        """Time until the Lease may be taken; 0 if its holder has given it back or is this process.

        If the Lease is gone while this process leads, no other can have held it.
        """
        # A Lease counts as given back only if this process has seen it held. One that is older than before, missing,
        # created again, or free at first sight may come from a restored store: another process may hold it although it
        # says otherwise, so it is free only a whole duration after it was first seen like this.
        is_known = seen.is_followed or (not seen.is_restored and (self._terms.is_fenced or bool(self.holder)))
        if self.holder in ("", self.identity) and (was_leading or is_known):
            return Seconds(0.0)
        duration = 1 if lease is None else max(1, whole(child(lease, "spec"), "leaseDurationSeconds"))
        # A Lease that was given back says 1 s: a process that did not see it held assumes at least its own duration.
        duration = duration if seen.is_followed else max(duration, int(self._terms.duration))
        # Counted from when this process saw the renewal, not from the time written in it: clocks differ.
        return Seconds(max(0.0, seen.at + duration - self._clock.now()))

    async def _create(self) -> None:
        # The Lease counts from before the call, so that the holder stops before others may begin.
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
        """Renew the Lease, or takes it over; False if it is no longer as it was read."""
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
        # With the version that was read, so that the API server lets only one of several replicas take the Lease.
        body: Json = {"metadata": {"resourceVersion": self._version}, "spec": spec}
        return await self.api.call(
            ApiCall("PATCH", self.path, self._terms.call_timeout, body=body, content_type=MERGE_PATCH)
        )

    def _held(self, asked: Instant, lease: JsonObject) -> None:
        self._version = version_of(lease)
        self._newest = number(self._version)
        self._seen = _Seen(uid_of(lease), self._version, self._clock.now(), is_restored=False, is_followed=True)
        self.holder = self.identity
        if not self.leads:
            # Just won, or the time ran out before the renewal was answered. Others may have led in between, so what
            # this process knew proves nothing any more.
            self.term += 1
        self._until = Instant(asked + self._terms.duration - self._terms.spare)

    def _claim(self) -> Json:
        duration = int(self._terms.duration)
        return {"holderIdentity": self.identity, "leaseDurationSeconds": duration, "renewTime": self._stamp()}

    def _stamp(self) -> str:
        return micro_timestamp(self._clock.wall())

    @property
    def path(self) -> str:
        """Path of the Lease."""
        return LEASES.path(self._terms.name.namespace, self._terms.name.name)

    def _tell(self) -> None:
        # Terms are compared, not booleans: a Lease lost and won again between two calls is reported as both.
        before, self._told = self._told, self.term if self.leads else 0
        if before and before != self._told:
            self.on_change(False)
        if self._told and before != self._told:
            self.on_change(True)
