"""One of several scheduler replicas: it watches the whole cluster, and is active while it holds the Lease (B.3).

A standby keeps a ledger for explanations. It writes only the Lease, and tells agents and kube-scheduler that another
replica leads.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final, Never

from protocol.kubernetes.api import ApiCall, ApiError, ApiRefusedError, KubernetesApi
from protocol.kubernetes.objects import JsonObject, has_finished, items, name_of, text
from protocol.kubernetes.pages import UnreadableAnswerError, WatchEvent, read_event
from protocol.kubernetes.resources import PODS
from protocol.kubernetes.watch_times import WatchTimes, watch_query
from protocol.runtime.clock import Clock
from protocol.runtime.kubernetes.lease import Leadership
from protocol.units import Seconds
from scheduler_plugin.app import Parts, SchedulerPorts, activate, context_of
from scheduler_plugin.auth.authenticator import TokenAuthenticator
from scheduler_plugin.cluster.feed import Feed
from scheduler_plugin.context import SchedulerContext
from scheduler_plugin.leader_endpoints import LeaderEndpoints
from scheduler_plugin.ledger.ledger import Ledger
from scheduler_plugin.order_queues import OrderQueues
from scheduler_plugin.service.service import LeaderStatus, Service, StandbyError
from scheduler_plugin.settings.document import SchedulerSettings
from scheduler_plugin.term import Term, Writes
from scheduler_plugin.texts import logs

LOG: Final = logging.getLogger("autoscale.replica")


class Replica:
    """One scheduler replica; implements ``service.ActiveService``.

    ``endpoints`` point clients to the leader.
    """

    def __init__(
        self, ports: SchedulerPorts, leadership: Leadership, endpoints: LeaderEndpoints, settings: SchedulerSettings
    ) -> None:
        self._ports = ports
        self._leadership = leadership
        self._endpoints = endpoints
        self.authenticator = TokenAuthenticator(ports.reviews.review, ports.clock)
        self._writes = Writes(ports.clock)
        ledger, queues = Ledger(), OrderQueues()
        # Without an identity: a standby has no permits of its own to recognize.
        self.feed = Feed(ledger, queues, ports.telemetry, clock=ports.clock, settings=settings, identity=None)
        self._standby = self._context(ledger, queues, self._term())
        self._active: Parts | None = None
        self._lease_changed = asyncio.Event()
        self._leadership.on_change = self._on_lease_change
        self._leadership.on_restored = self.feed.restored
        self._watch = LeaseWatch(leadership, ports.clock)
        ports.telemetry.leads(False)

    @property
    def context(self) -> SchedulerContext:
        """The leader's context, or the standby's."""
        return self._standby if self._active is None else self._active.context

    def leadership(self) -> LeaderStatus:
        """The leadership status."""
        # During an orderly shutdown, send clients away before the Lease is free.
        if self._writes.is_closing:
            return LeaderStatus(False, "")
        return LeaderStatus(self._active is not None and self._active.context.term.leads, self._leadership.holder)

    def active(self) -> Service:
        """The active service. Raises ``StandbyError``."""
        leadership, parts = self.leadership(), self._active
        if not leadership.leads or parts is None:
            raise StandbyError(leadership)
        return parts.service

    async def run(self) -> None:
        """Watch and act until cancelled; then release the Lease if that is safe."""
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self.feed.run(self._ports.api))
                tasks.create_task(self.authenticator.run())
                tasks.create_task(self._acquire_lease())
                tasks.create_task(self._watch.run())
                tasks.create_task(self._run_terms())
        finally:
            # After a write with an unknown outcome let the Lease expire: the write may still land.
            if await self.retire():
                await self._leadership.release()

    async def retire(self) -> bool:
        """Start no further write and wait for those in flight; return True if the Lease can be released."""
        is_known = await self._writes.close()
        if not is_known and self._leadership.leads:
            LOG.warning(logs.LEASE_KEPT)
        return is_known

    async def _acquire_lease(self) -> None:
        """Acquire the Lease. Until the cluster has been read only watch it: as leader this replica could not decide."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._leadership.run(self.feed.ready))
            await self.feed.ready.wait()
            self._leadership.poll()

    def _on_lease_change(self, leads: bool) -> None:
        LOG.info(logs.LEASE_WON if leads else logs.LEASE_LOST)
        self._ports.telemetry.lease_held.set(leads)
        self._lease_changed.set()

    async def _run_terms(self) -> Never:
        while True:
            await self._lease_changed.wait()
            self._lease_changed.clear()
            if not self._leadership.leads:
                continue
            async with asyncio.TaskGroup() as tasks:
                # Work in flight when the Lease is lost is cancelled with the term.
                leading = tasks.create_task(self._lead(self._term()))
                await self._lease_changed.wait()
                leading.cancel()
            self._stand_by()

    async def _lead(self, term: Term) -> None:
        began = self._ports.clock.now()
        if self._leadership.term > 1:  # its writes of an earlier term may still land
            await self._ports.clock.sleep(self._leadership.spare)
        # The installation may have had a scheduler without a Lease, which no Lease stops.
        if await wait_until_gone(self._ports.api, self._ports.clock, self._leadership.namespace):
            await self._ports.clock.sleep(self._leadership.spare)
        # Lists that start after the Lease was acquired contain all writes of the previous leader. The standby's ledger
        # is not enough: it does not know which responses were sent.
        await self.feed.refresh()
        # The Lease may have been lost during the lists.
        if not term.leads:
            return
        ledger, queues = Ledger(), OrderQueues()
        context = self._context(ledger, queues, term)
        self.feed.attach(ledger, queues, context.writer.identity)
        self._active = activate(context, self.authenticator)
        duration = Seconds(self._ports.clock.now() - began)
        LOG.info(logs.LEADING, extra={"seconds": round(duration, 3), "claims": len(ledger.claims)})
        self._ports.telemetry.leads(True, duration)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._active.workers.run())
            tasks.create_task(self._endpoints.keep(term))

    def _stand_by(self) -> None:
        """Return to standby, with a new ledger for explanations."""
        ledger, queues = Ledger(), OrderQueues()
        self._active = None
        self._standby = self._context(ledger, queues, self._term())
        self.feed.attach(ledger, queues, None)
        self._ports.telemetry.leads(False)

    def _term(self) -> Term:
        return Term(self._ports.clock, self._leadership, self._writes)

    def _context(self, ledger: Ledger, queues: OrderQueues, term: Term) -> SchedulerContext:
        return context_of(self._ports, self.feed, ledger, queues, term)


LEASE_LOG: Final = logging.getLogger("autoscale.lease")

PAUSE: Final = Seconds(2.0)
"""Between two watches. A watch begins with the present Lease, so nothing is missed."""


class LeaseWatch:
    """Watches the Lease, so that a standby notices its release immediately instead of at the next poll.

    Needs permission to watch only that object.
    """

    def __init__(self, leadership: Leadership, clock: Clock) -> None:
        self._leadership = leadership
        self._clock = clock

    async def run(self) -> Never:
        """Watch until cancelled."""
        previous = ""
        while True:
            try:
                await self._listen()
            except (ApiError, UnreadableAnswerError) as error:
                # Without permission to watch this fails forever; polling the Lease is enough then.
                if str(error) != previous:
                    LEASE_LOG.info(logs.LEASE_NOT_WATCHED, extra={"reason": str(error)})
                previous = str(error)
            await self._clock.sleep(PAUSE)

    async def _listen(self) -> None:
        path, _, name = self._leadership.path.rpartition("/")
        times = WatchTimes.spread(self._clock.jitter())
        # A watch of a single object is a watch of the collection with this selector.
        query = {"fieldSelector": f"metadata.name={name}", **watch_query("", times)}
        async with self._leadership.api.stream(ApiCall("GET", path, times.silence, query=query)) as lines:
            async for line in lines:
                if _is_released(read_event(line)):
                    # Only a hint: the following read decides.
                    self._leadership.poll()


def _is_released(event: WatchEvent) -> bool:
    if event.refusal is not None:
        raise ApiRefusedError(event.refusal)
    return event.type in ("ADDED", "MODIFIED") and not text(event.object, "spec", "holderIdentity")


PREDECESSOR_LOG: Final = logging.getLogger("autoscale.predecessor")

SELECTOR: Final = "app.kubernetes.io/name=autoscaling-scheduler"
"""Label of all scheduler pods, in all manifests."""

LEASE: Final = "--lease"
TIMEOUT: Final = Seconds(2.0)
INTERVAL: Final = Seconds(0.5)


def runs_without_lease(pod: JsonObject) -> bool:
    """Return True if the scheduler in that pod acts without a Lease, now or later.

    >>> runs_without_lease({"spec": {"containers": [{"args": ["--config=a"]}]}})
    True
    >>> runs_without_lease({"spec": {"containers": [{"args": ["--lease=a/b"]}, {"args": []}]}})
    False
    """
    containers = items(pod, "spec", "containers")
    lines = (container.get(field) for container in containers for field in ("command", "args"))
    arguments = [str(argument) for line in lines if isinstance(line, list) for argument in line]
    return not has_finished(pod) and not any(
        argument == LEASE or argument.startswith(f"{LEASE}=") for argument in arguments
    )


async def wait_until_gone(api: KubernetesApi, clock: Clock, namespace: str) -> bool:
    """Wait until no scheduler in ``namespace`` acts without a Lease; return True if it had to wait.

    No Lease stops such a scheduler. With this check an installation can change from one scheduler to two replicas in
    place, and two never act at once.
    """
    previous: object = None
    while True:
        try:
            listed = await api.call(ApiCall("GET", PODS.path(namespace), TIMEOUT, {"labelSelector": SELECTOR}))
            waiting_for: object = [str(name_of(pod)) for pod in items(listed, "items") if runs_without_lease(pod)]
        except ApiError as error:
            # One may still act.
            waiting_for = str(error)
        if not waiting_for:
            return previous is not None
        # Log changes only: this repeats twice a second.
        if waiting_for != previous:
            PREDECESSOR_LOG.warning(logs.NOT_LEADING, extra={"reason": waiting_for})
        previous = waiting_for
        await clock.sleep(INTERVAL)
