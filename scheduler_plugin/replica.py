"""One of several schedulers: it follows the whole cluster, and acts while it holds the Lease (B.3).

A standby keeps a ledger of what it reads, for people to look at. It writes nothing but the Lease, and answers agents
and kube-scheduler that another leads.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final, Never

from protocol.kubernetes.api import ApiCall, ApiError, ApiRefusedError, KubernetesApi
from protocol.kubernetes.cursor import WatchTimes, watch_query
from protocol.kubernetes.objects import JsonObject, is_over, items, name_of, text
from protocol.kubernetes.pages import UnreadableAnswerError, WatchEvent, read_event
from protocol.kubernetes.resources import PODS
from protocol.runtime.clock import Clock
from protocol.runtime.kubernetes.lease import Leadership
from protocol.units import Seconds
from scheduler_plugin.app import Parts, SchedulerPorts, acting, context_of
from scheduler_plugin.auth.authenticator import TokenAuthenticator
from scheduler_plugin.cluster.feed import Feed
from scheduler_plugin.context import SchedulerContext
from scheduler_plugin.leader_endpoints import LeaderEndpoints
from scheduler_plugin.ledger.ledger import Ledger
from scheduler_plugin.order_queues import OrderQueues
from scheduler_plugin.service.service import LeaderStatus, Service, StandingByError
from scheduler_plugin.settings.document import SchedulerSettings
from scheduler_plugin.term import Term, Writes
from scheduler_plugin.texts import logs

LOG: Final = logging.getLogger("autoscale.replica")


class Replica:
    """One scheduler of several; see ``service.ActiveService`` for its port.

    ``endpoints`` lead clients to the leader.
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
        # Without an identity: a standby writes no permits that it would have to recognise as its own.
        self.feed = Feed(ledger, queues, ports.telemetry, clock=ports.clock, settings=settings, identity=None)
        self._following = self._context(ledger, queues, self._term())
        self._acting: Parts | None = None
        self._news = asyncio.Event()
        self._leadership.on_change = self._led
        self._leadership.on_restored = self.feed.restored
        self._watch = LeaseWatch(leadership, ports.clock)
        ports.telemetry.leads(False)

    @property
    def context(self) -> SchedulerContext:
        """The ledger that decides, or the one that only follows."""
        return self._following if self._acting is None else self._acting.context

    def standing(self) -> LeaderStatus:
        """Return whether this replica acts, and which one leads."""
        # A leader that ends in order sends its clients elsewhere before the Lease is free.
        if self._writes.is_closing:
            return LeaderStatus(False, "")
        return LeaderStatus(self._acting is not None and self._acting.context.term.leads, self._leadership.holder)

    def acting(self) -> Service:
        """The active service. Raises ``StandingByError``."""
        standing, parts = self.standing(), self._acting
        if not standing.leads or parts is None:
            raise StandingByError(standing)
        return parts.service

    async def run(self) -> None:
        """Follows and acts until cancelled; then gives the Lease back if that is safe."""
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self.feed.run(self._ports.api))
                tasks.create_task(self.authenticator.run())
                tasks.create_task(self._seek())
                tasks.create_task(self._watch.run())
                tasks.create_task(self._act())
        finally:
            # A write whose outcome is unknown may still land: then the Lease is left to expire instead.
            if await self.retire():
                await self._leadership.release()

    async def retire(self) -> bool:
        """Begin no further write and wait for those in flight; return True if the Lease can be given back."""
        is_known = await self._writes.close()
        if not is_known and self._leadership.leads:
            LOG.warning(logs.LEASE_KEPT)
        return is_known

    async def _seek(self) -> None:
        """Seek the Lease; only look until the cluster has been read: before that, a leader could answer nothing."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._leadership.run(self.feed.ready))
            await self.feed.ready.wait()
            self._leadership.look()

    def _led(self, leads: bool) -> None:
        LOG.info(logs.LEASE_WON if leads else logs.LEASE_LOST)
        self._ports.telemetry.holds_lease(leads)
        self._news.set()

    async def _act(self) -> Never:
        while True:
            await self._news.wait()
            self._news.clear()
            if not self._leadership.leads:
                continue
            async with asyncio.TaskGroup() as tasks:
                # Whatever is in flight when the Lease passes on is cancelled with the term.
                leading = tasks.create_task(self._lead(self._term()))
                await self._news.wait()
                leading.cancel()
            self._follow()

    async def _lead(self, term: Term) -> None:
        began = self._ports.clock.now()
        if self._leadership.term > 1:  # what it sent in its last term may still arrive
            await self._ports.clock.sleep(self._leadership.spare)
        # The installation may have had a scheduler without a Lease until now, and no Lease holds that one back.
        if await until_gone(self._ports.api, self._ports.clock, self._leadership.namespace):
            await self._ports.clock.sleep(self._leadership.spare)
        # Lists that begin after the Lease was won contain everything that the previous leader could write in its term.
        # A follower's ledger is not enough: it does not know what was answered.
        await self.feed.refresh()
        # The lists take time: the Lease may have passed on meanwhile.
        if not term.leads:
            return
        ledger, queues = Ledger(), OrderQueues()
        context = self._context(ledger, queues, term)
        self.feed.fill(ledger, queues, context.writer.identity)
        self._acting = acting(context, self.authenticator)
        took = Seconds(self._ports.clock.now() - began)
        LOG.info(logs.LEADING, extra={"seconds": round(took, 3), "claims": len(ledger.claims)})
        self._ports.telemetry.leads(True, took)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._acting.workers.run())
            tasks.create_task(self._endpoints.keep(term))

    def _follow(self) -> None:
        """Return to standing by: a new ledger of what is read from now on, for people to look at."""
        ledger, queues = Ledger(), OrderQueues()
        self._acting = None
        self._following = self._context(ledger, queues, self._term())
        self.feed.fill(ledger, queues, None)
        self._ports.telemetry.leads(False)

    def _term(self) -> Term:
        return Term(self._ports.clock, self._leadership, self._writes)

    def _context(self, ledger: Ledger, queues: OrderQueues, term: Term) -> SchedulerContext:
        return context_of(self._ports, self.feed, ledger, queues, term)


LEASE_LOG: Final = logging.getLogger("autoscale.lease")

PAUSE: Final = Seconds(2.0)
"""Between a watch that has ended and the next one. A watch begins with the Lease as it is, so nothing is missed."""


class LeaseWatch:
    """Watches the Lease of ``leadership``: a standby learns at once that it was given back, not only at its next read.

    The right to watch that one object is enough.
    """

    def __init__(self, leadership: Leadership, clock: Clock) -> None:
        self._leadership = leadership
        self._clock = clock

    async def run(self) -> Never:
        """Listens for ever."""
        previous = ""
        while True:
            try:
                await self._listen()
            except (ApiError, UnreadableAnswerError) as error:
                # Without the right to watch this repeats for ever; the regular reads of the Lease are enough then.
                if str(error) != previous:
                    LEASE_LOG.info(logs.LEASE_NOT_WATCHED, extra={"reason": str(error)})
                previous = str(error)
            await self._clock.sleep(PAUSE)

    async def _listen(self) -> None:
        path, _, name = self._leadership.path.rpartition("/")
        times = WatchTimes.spread(self._clock.jitter())
        # Kubernetes has no watch of a single object, only of a collection with this selector.
        query = {"fieldSelector": f"metadata.name={name}", **watch_query("", times)}
        async with self._leadership.api.stream(ApiCall("GET", path, times.silence, query=query)) as lines:
            async for line in lines:
                if _is_given_back(read_event(line)):
                    # Only a hint: the read that follows decides whether the Lease is free.
                    self._leadership.look()


def _is_given_back(event: WatchEvent) -> bool:
    if event.refusal is not None:
        raise ApiRefusedError(event.refusal)
    return event.type in ("ADDED", "MODIFIED") and not text(event.object, "spec", "holderIdentity")


PREDECESSOR_LOG: Final = logging.getLogger("autoscale.predecessor")

SELECTOR: Final = "app.kubernetes.io/name=autoscaling-scheduler"
"""The label of every scheduler's pod, in all manifests."""

LEASE: Final = "--lease"
TIMEOUT: Final = Seconds(2.0)
INTERVAL: Final = Seconds(0.5)


def acts_alone(pod: JsonObject) -> bool:
    """Return True if the scheduler in that pod acts, or may yet act, without a Lease.

    >>> acts_alone({"spec": {"containers": [{"args": ["--config=a"]}]}})
    True
    >>> acts_alone({"spec": {"containers": [{"args": ["--lease=a/b"]}, {"args": []}]}})
    False
    """
    containers = items(pod, "spec", "containers")
    lines = (container.get(field) for container in containers for field in ("command", "args"))
    arguments = [str(argument) for line in lines if isinstance(line, list) for argument in line]
    return not is_over(pod) and not any(argument == LEASE or argument.startswith(f"{LEASE}=") for argument in arguments)


async def until_gone(api: KubernetesApi, clock: Clock, namespace: str) -> bool:
    """Return once no scheduler in ``namespace`` acts without a Lease: True if one had to be waited for.

    No Lease holds such a scheduler back. An installation can thus go from one scheduler to two in place, without
    deleting anything by hand, and two never act.
    """
    previous: object = None
    while True:
        try:
            listed = await api.call(ApiCall("GET", PODS.path(namespace), TIMEOUT, {"labelSelector": SELECTOR}))
            waiting_for: object = [str(name_of(pod)) for pod in items(listed, "items") if acts_alone(pod)]
        except ApiError as error:
            # If the list fails, one may still act.
            waiting_for = str(error)
        if not waiting_for:
            return previous is not None
        # Logged only when it changes: this repeats twice a second.
        if waiting_for != previous:
            PREDECESSOR_LOG.warning(logs.NOT_LEADING, extra={"reason": waiting_for})
        previous = waiting_for
        await clock.sleep(INTERVAL)
