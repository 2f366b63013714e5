"""Assembly of a scheduler from its parts.

``assemble`` creates everything from ports that tests replace; nothing is created at import. The active parts are
created for each term (``activate``), so that they keep no decision of another term.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from protocol.kubernetes.api import KubernetesApi
from protocol.runtime.clock import Clock
from protocol.runtime.kubernetes.token_reviews import TokenReviews
from protocol.units import Seconds
from scheduler_plugin.auth.authenticator import TokenAuthenticator
from scheduler_plugin.cluster.feed import Feed
from scheduler_plugin.cluster.write import ClusterWriter
from scheduler_plugin.context import SchedulerContext
from scheduler_plugin.ledger.ledger import Ledger
from scheduler_plugin.migration.mover import Mover
from scheduler_plugin.migration.reporter import MigrationReporter
from scheduler_plugin.order_queues import OrderQueues
from scheduler_plugin.planner.plan import MigrationStatus
from scheduler_plugin.planner.planner import Planner
from scheduler_plugin.service.service import Service, Workers
from scheduler_plugin.settings.document import SchedulerSettings
from scheduler_plugin.telemetry import Telemetry
from scheduler_plugin.term import Term
from scheduler_plugin.workers.background_tasks import BackgroundTasks
from scheduler_plugin.workers.event_recorder import SchedulerEvents
from scheduler_plugin.workers.permit_writer import PermitWriter
from scheduler_plugin.workers.problem_watcher import ProblemWatcher
from scheduler_plugin.workers.request_writer import RequestWriter


@dataclass(frozen=True, slots=True)
class Parts:
    """An active scheduler: its service and its background tasks."""

    context: SchedulerContext
    workers: Workers
    authenticator: TokenAuthenticator
    service: Service

    async def run(self, api: KubernetesApi, hold_back: Seconds | None = None) -> None:
        """Run the background tasks of a scheduler without a Lease, until cancelled.

        Decides nothing until ``hold_back`` after it has read the cluster: a Binding of its predecessor may still be in
        flight. None: there was no predecessor.
        """
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.context.feed.run(api))
            tasks.create_task(self.authenticator.run())
            # Only decisions wait; the feed and the reviews run.
            if hold_back is not None:
                await self.context.feed.hold_back(hold_back)
            tasks.create_task(self.workers.run())


@dataclass(frozen=True, slots=True)
class SchedulerPorts:
    """Ports of a scheduler. ``identity`` is unique to its process."""

    api: KubernetesApi
    reviews: TokenReviews
    clock: Clock
    telemetry: Telemetry
    identity: str


def assemble(ports: SchedulerPorts, settings: SchedulerSettings) -> Parts:
    """Assemble a scheduler without a Lease; nothing runs yet."""
    ledger, queues = Ledger(), OrderQueues()
    feed = Feed(ledger, queues, ports.telemetry, clock=ports.clock, settings=settings, identity=ports.identity)
    # Without a Lease this process is the leader from the start.
    ports.telemetry.leads(True)
    context = context_of(ports, feed, ledger, queues, Term(ports.clock))
    return activate(context, TokenAuthenticator(ports.reviews.review, ports.clock))


def context_of(ports: SchedulerPorts, feed: Feed, ledger: Ledger, queues: OrderQueues, term: Term) -> SchedulerContext:
    """The context for all users of ``ledger`` in ``term``."""
    # Signed with the term: writes of this process in an earlier term count as another writer's.
    writer = ClusterWriter(ports.api, term.signed(ports.identity), term.writing)
    return SchedulerContext(ledger, feed, queues, writer, ports.clock, ports.telemetry, MigrationStatus(), term)


def activate(context: SchedulerContext, authenticator: TokenAuthenticator) -> Parts:
    """The active parts of the context's term; nothing runs yet."""
    events = SchedulerEvents(context)
    mover = Mover(context, MigrationReporter(context, events), Planner())
    permits, requests = PermitWriter(context), RequestWriter(context)
    workers = Workers(BackgroundTasks(context), permits, events, mover, ProblemWatcher(context, events), requests)
    return Parts(context, workers, authenticator, Service(context, workers, authenticator))
