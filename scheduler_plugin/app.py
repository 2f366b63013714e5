"""The three web applications over one service, and the one place where everything is put together.

Rules that hold here:

- Agents, extender verbs and probes are separate applications on separate listeners.
- Nothing is made at import; ``assemble`` makes everything, from ports that tests replace.
"""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec
from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response

from protocol.messages import ObjectName
from protocol.runtime.clock import Clock
from protocol.runtime.credentials import CredentialsError, FileToken
from scheduler_plugin.auth.authenticator import TokenAuthenticator
from scheduler_plugin.cluster.api import KubernetesApi
from scheduler_plugin.cluster.feed import Feed
from scheduler_plugin.cluster.token_reviews import TokenReviews
from scheduler_plugin.cluster.write import ClusterWriter
from scheduler_plugin.context import SchedulerContext
from scheduler_plugin.ledger import Ledger
from scheduler_plugin.migration.mover import Mover
from scheduler_plugin.migration.reporter import MigrationReporter
from scheduler_plugin.migration.status import MigrationStatus
from scheduler_plugin.service import Service
from scheduler_plugin.service.workers import Workers
from scheduler_plugin.settings.document import SchedulerSettings
from scheduler_plugin.telemetry import Telemetry
from scheduler_plugin.web.agents import AgentRoutes
from scheduler_plugin.web.extender import ExtenderRoutes
from scheduler_plugin.web.views import nodes_view, vm_view
from scheduler_plugin.workers.background_tasks import BackgroundTasks
from scheduler_plugin.workers.event_recorder import EventRecorder
from scheduler_plugin.workers.permit_writer import PermitWriter
from scheduler_plugin.workers.problem_watcher import ProblemWatcher
from scheduler_plugin.workqueue import WorkQueues

_ENCODER: Final = msgspec.json.Encoder()
Handler = Callable[[Request], Awaitable[Response]]


@dataclass(frozen=True, slots=True)
class Parts:
    """One scheduler, put together: what to serve and what to keep running."""

    context: SchedulerContext
    workers: Workers
    authenticator: TokenAuthenticator
    service: Service

    async def run(self, api: KubernetesApi) -> None:
        """Everything that works in the background, for ever."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.context.feed.run(api))
            tasks.create_task(self.workers.run())
            tasks.create_task(self.authenticator.run())


def assemble(
    writer: ClusterWriter, reviews: TokenReviews, clock: Clock, settings: SchedulerSettings, telemetry: Telemetry
) -> Parts:
    """Puts one scheduler together; nothing runs yet."""
    ledger, queues = Ledger(), WorkQueues()
    feed = Feed(ledger, queues, telemetry, clock=clock, settings=settings, identity=writer.identity)
    context = SchedulerContext(ledger, feed, queues, writer, clock, telemetry, MigrationStatus())
    events = EventRecorder(context)
    mover, problems = Mover(context, MigrationReporter(context, events)), ProblemWatcher(context, events)
    workers = Workers(BackgroundTasks(context), PermitWriter(context), events, mover, problems)
    authenticator = TokenAuthenticator(reviews.review, clock)
    return Parts(context, workers, authenticator, Service(context, workers, authenticator))


def agents_app(service: Service) -> FastAPI:
    """What agents talk to (:10299)."""
    app = _bare("agents")
    app.add_route("/", AgentRoutes(service).request, methods=["POST"])
    return app


def extender_app(service: Service) -> FastAPI:
    """What kube-scheduler talks to (:10298); with a bearer token where the settings name a file that holds one."""
    app, routes = _bare("extender"), ExtenderRoutes(service)
    for verb in (routes.filter, routes.prioritize, routes.bind, routes.preempt):
        app.add_route(f"/{verb.__name__}", _guarded(verb, service), methods=["POST"])
    return app


def probes_app(context: SchedulerContext) -> FastAPI:
    """Metrics, probes and explanations (:10297); reads only."""
    app, ledger = _bare("probes"), context.ledger

    async def metrics(_: Request) -> Response:
        return Response(await context.telemetry.page(ledger), media_type="text/plain; version=0.0.4; charset=utf-8")

    async def healthz(_: Request) -> Response:
        return Response("ok\n", media_type="text/plain")

    async def readyz(_: Request) -> Response:
        if ledger.is_ready:
            return Response("ok\n", media_type="text/plain")
        missing = ", ".join(context.feed.missing)
        return Response(f"the cluster has not been read yet, missing: {missing}\n", 503, media_type="text/plain")

    async def nodes(_: Request) -> Response:
        return Response(_ENCODER.encode(nodes_view(context)), media_type="application/json")

    async def explain(request: Request) -> Response:
        vm = ObjectName(request.path_params["namespace"], request.path_params["vm"])
        view = vm_view(context, vm)
        if view is None:
            return Response(_ENCODER.encode({"error": f"no pod runs {vm}"}), 404, media_type="application/json")
        return Response(_ENCODER.encode(view), media_type="application/json")

    for path, handler in (("metrics", metrics), ("healthz", healthz), ("readyz", readyz), ("nodes", nodes)):
        app.add_route(f"/{path}", handler, methods=["GET"])
    app.add_route("/explain/{namespace}/{vm}", explain, methods=["GET"])
    return app


def _bare(title: str) -> FastAPI:
    return FastAPI(title=f"autoscale-scheduler {title}", docs_url=None, redoc_url=None, openapi_url=None)


def _guarded(handler: Handler, service: Service) -> Handler:
    context, tokens = service.context, dict[str, FileToken]()

    async def guarded(request: Request) -> Response:
        path = context.feed.settings.extender_token_file
        if path is not None and not _shows(request, tokens.setdefault(path, FileToken(Path(path), context.clock))):
            return Response(_ENCODER.encode({"error": "a bearer token is needed"}), 401, media_type="application/json")
        return await handler(request)

    return guarded


def _shows(request: Request, token: FileToken) -> bool:
    try:
        expected = token()
    except CredentialsError:
        return False
    shown = request.headers.get("authorization", "").removeprefix("Bearer ")
    return bool(expected) and hmac.compare_digest(shown.encode(), expected.encode())
