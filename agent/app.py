"""One agent process: settings in, a supervisor and a listener running until it is stopped.

This is the only place where adapters meet the core; nothing exists before ``run`` is called.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

import httpx2 as httpx

from agent import texts
from agent.adapters.guest_database import GuestDatabase
from agent.adapters.guest_monitor import GuestMonitor
from agent.adapters.kubernetes_api import LightKubernetesApi
from agent.adapters.neonvm import NeonVm
from agent.adapters.node_pods import NodePods
from agent.adapters.node_scheduler import NodeScheduler
from agent.adapters.pod_api import PodApi
from agent.adapters.pod_reclaim import PodReclaim
from agent.adapters.scheduler_client import HttpScheduler
from agent.adapters.scheduler_line import SchedulerLine
from agent.adapters.scrape import NodeExporter
from agent.adapters.token import AgentToken, no_token
from agent.assignments import Assignment, AssignmentSource, OwnVm, PodContainer
from agent.cgroups.metrics import CgroupMetrics
from agent.config import read_policy
from agent.core.events import Fault
from agent.core.growth import GrowthTimes
from agent.core.policy import Policy, Rhythm
from agent.exporter import explain_guard, routes
from agent.ports import DatabaseView, PortError, SchedulerClient, TokenSource
from agent.runner import Ports, Runner
from agent.settings import AgentSettings
from agent.supervisor import Make, Supervisor
from agent.telemetry import LOG
from protocol.kubernetes.objects import JsonObject
from protocol.runtime.clock import Clock
from protocol.runtime.explaining.explain_access import (
    ExplainAccess,
    ReviewedAccess,
    ReviewError,
    TokenInFile,
    audience_of_agents,
)
from protocol.runtime.explaining.probe_server import listening
from protocol.runtime.followed_file import FollowedFile
from protocol.runtime.keep_alive import probed_transport
from protocol.runtime.tls_files import client_tls, following, shown_tls
from protocol.runtime.tls_metrics import followed_by
from protocol.runtime.trust import trusting
from protocol.runtime.url_hosts import url_host
from protocol.units import Instant, Seconds
from protocol.versions import AGENT_SPEAKS

SCRAPE_DEADLINE = Seconds(2.0)
DATABASE_DEADLINE = Seconds(4.0)
MONITOR_DEADLINE = Seconds(3.0)
ASK_DEADLINE = Seconds(5.0)
API_DEADLINE = Seconds(5.0)

RHYTHM = Seconds(5.0)
"""A third of the usual tick: the VMs of a node fall into three messages."""

NOBODY_WAITS_LONGER = 30.0
"""The clients' own time-out; every call has a shorter deadline, or says its own."""


async def run(settings: AgentSettings, clock: Clock, stop: asyncio.Event) -> None:
    """Runs the agent until ``stop`` is set. Raises ``OSError`` if it cannot listen."""
    to_scheduler = _trust("scheduler", settings.scheduler_url, settings.scheduler_ca)
    to_api = _trust("kubernetes-api", settings.api_url, settings.api_ca)
    to_guests = _shown(settings.guest_certificates)
    async with AsyncExitStack() as stack:
        # One pool of connections for each kind of peer, each trusting only whom it must.
        guests, to_ask, http = [
            await stack.enter_async_context(plain_pool(tls)) for tls in (to_guests, to_scheduler, to_api)
        ]
        api = LightKubernetesApi(http, settings.api_url, _identity(settings.api_token), API_DEADLINE)
        scheduler = _scheduler(settings, clock, to_ask, to_scheduler)
        make = _maker(settings, clock, api, guests, scheduler)
        supervisor = Supervisor(_source(settings, api), make, Policy(), clock)
        watched = [file for tls in (to_scheduler, to_api, to_guests) for file in followed_by(tls)]
        messages = scheduler.messages if isinstance(scheduler, NodeScheduler) else None
        served = routes(supervisor, clock, watched, alone=settings.assignment is not None, messages=messages)
        guard = explain_guard(_access(settings, api, clock), settings.assignment)
        port = await stack.enter_async_context(listening(settings.host, settings.port, served, guard))
        about = {"vm": str(settings.assignment.vm)} if settings.assignment else {"node": settings.node}
        started = {**about, "port": port, "scheduler": settings.scheduler_url}
        LOG.info("agent started", extra=started)
        await _until(stop, settings, supervisor, scheduler, clock)
        LOG.info("agent stopped", extra=about)


def _access(settings: AgentSettings, api: LightKubernetesApi, clock: Clock) -> ExplainAccess:
    if settings.explain_token is not None:
        return TokenInFile(settings.explain_token)

    async def review(path: str, body: JsonObject) -> JsonObject:
        try:
            return await api.post(path, body)
        except PortError as error:
            raise ReviewError(error.reason) from None

    return ReviewedAccess(review, clock, audience_of_agents(settings.namespace))


def _source(settings: AgentSettings, api: LightKubernetesApi) -> AssignmentSource:
    if settings.assignment:
        return OwnVm(settings.assignment)
    serves_pods = settings.cgroup_root is not None
    return NodePods(api, settings.node or "", settings.scheduler_name, serves_pods=serves_pods)


async def _until(
    stop: asyncio.Event,
    settings: AgentSettings,
    supervisor: Supervisor,
    scheduler: SchedulerClient,
    clock: Clock,
) -> None:
    async with asyncio.TaskGroup() as tasks:
        running = [tasks.create_task(supervisor.run())]
        if isinstance(scheduler, NodeScheduler):
            running.append(tasks.create_task(scheduler.run()))
        if settings.policy_file is not None:
            file = FollowedFile(settings.policy_file, partial(read_policy, base=Policy()))
            # Read the file before the supervisor's task first runs, so that no VM starts with the default policy.
            file.begin(supervisor)
            running.append(tasks.create_task(file.follow(supervisor, clock)))
        await stop.wait()
        # Nothing here is worth waiting for on a stop: what is in flight counts as in effect until the next start has
        # seen otherwise.
        for task in running:
            task.cancel()


def _scheduler(
    settings: AgentSettings, clock: Clock, client: httpx.AsyncClient, tls: ssl.SSLContext
) -> SchedulerClient:
    """A node's agent sends the requests of many VMs in one message if the scheduler speaks our own version."""
    identity, url = _identity(settings.scheduler_token), settings.scheduler_url
    alone = HttpScheduler(client, url, identity, ASK_DEADLINE, settings.protocol)
    # Only our own wire version has batches, and a sidecar has just one VM to ask for.
    if settings.node is None or settings.protocol is not AGENT_SPEAKS:
        return alone
    return NodeScheduler(alone, SchedulerLine(url, tls, identity, ASK_DEADLINE), clock)


def _maker(
    settings: AgentSettings,
    clock: Clock,
    api: LightKubernetesApi,
    guests: httpx.AsyncClient,
    scheduler: SchedulerClient,
) -> Make:
    # All VMs of the node share one phase, so that their requests fall due together and fit into few messages. The
    # jitter keeps the nodes of a cluster out of step.
    phase = Instant(clock.now() + RHYTHM * clock.jitter())
    rhythm = Rhythm(RHYTHM, phase) if isinstance(scheduler, NodeScheduler) else None

    def ports_of(assignment: Assignment) -> Ports:
        if assignment.container is not None and settings.cgroup_root is not None:
            return _pod_ports(settings, clock, api, scheduler, assignment, assignment.container, settings.cgroup_root)
        # An IPv6 address needs brackets in a URL. A sidecar has no address here, and no {pod_ip} in its URLs.
        address = url_host(assignment.pod_ip) if assignment.pod_ip else ""
        metrics, database = (url.replace("{pod_ip}", address) for url in (settings.metrics_url, settings.database_url))
        monitor = settings.monitor_url and settings.monitor_url.replace("{pod_ip}", address)
        return Ports(
            metrics=NodeExporter(metrics, SCRAPE_DEADLINE),
            scheduler=scheduler,
            vm_api=NeonVm(api, assignment.vm),
            database=GuestDatabase(guests, database, DATABASE_DEADLINE).look,
            clock=clock,
            monitor=GuestMonitor(monitor, MONITOR_DEADLINE).connect if monitor else None,
        )

    def make(assignment: Assignment, policy: Policy, growths: GrowthTimes) -> Runner:
        return Runner(
            assignment,
            ports_of(assignment),
            policy,
            # The wall clock as the first sequence number: a restarted agent counts on above its predecessor.
            time.time_ns(),
            growths,
            unit=settings.compute_unit,
            rhythm=rhythm,
        )

    return make


def _pod_ports(  # noqa: PLR0913, PLR0917 - a pod's part of the world
    settings: AgentSettings,
    clock: Clock,
    api: LightKubernetesApi,
    scheduler: SchedulerClient,
    assignment: Assignment,
    container: PodContainer,
    root: Path,
) -> Ports:
    reclaim = PodReclaim(settings.reclaimer, root, container.pod_uid, container.container_id, clock)
    return Ports(
        metrics=CgroupMetrics(root, container.pod_uid, container.container_id),
        scheduler=scheduler,
        vm_api=PodApi(api, assignment.pod, container.pod_uid),
        database=_no_view,
        clock=clock,
        monitor=reclaim.connect,
    )


async def _no_view() -> DatabaseView:
    raise PortError(Fault.GUEST, texts.NO_DATABASE_VIEW)


def plain_pool(verify: ssl.SSLContext) -> httpx.AsyncClient:
    """A client that trusts no environment: a proxy must not come between an agent and its guest."""
    # httpx's default limit of connections would let the VMs of a large node wait for each other.
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None, keepalive_expiry=30.0)
    return httpx.AsyncClient(transport=probed_transport(verify, limits), trust_env=False, timeout=NOBODY_WAITS_LONGER)


def no_authorities() -> ssl.SSLContext:
    """For plain HTTP: loading the world's authorities costs memory beside every VM."""
    return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


def _trust(name: str, url: str, authority: Path | None) -> ssl.SSLContext:
    """The context for calls to ``url``. While the authority's file is missing, no connection is made."""
    if not url.startswith("https://"):
        return no_authorities()
    # No file named: the system's authorities.
    if authority is None:
        return trusting()
    return following(client_tls(name, authority), ssl.PROTOCOL_TLS_CLIENT)


def _shown(folder: Path | None) -> ssl.SSLContext:
    """A runner's certificate is the pod's own and proves nothing, and what a guest says is not trusted either."""
    if folder is None:
        return no_authorities()
    return following(shown_tls("guests", folder / "tls.crt", folder / "tls.key"), ssl.PROTOCOL_TLS_CLIENT)


def _identity(path: Path | None) -> TokenSource:
    return no_token if path is None else AgentToken(path)
