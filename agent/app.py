"""One agent process: wires adapters, supervisor and HTTP server from the settings. No effects at import."""

from __future__ import annotations

import asyncio
import ssl
import time
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

import httpx2 as httpx
from prometheus_client import Histogram

from agent import texts
from agent.adapters.batch_connection import BatchConnection
from agent.adapters.guest_database import database_status
from agent.adapters.guest_monitor import GuestMonitor
from agent.adapters.kubernetes_api import LightKubernetesApi
from agent.adapters.neonvm import NeonVm
from agent.adapters.node_pods import NodePods
from agent.adapters.node_scheduler import NodeScheduler
from agent.adapters.pod_api import PodApi
from agent.adapters.pod_reclaim import PodReclaim
from agent.adapters.scheduler_client import HttpScheduler
from agent.adapters.scrape import NodeExporter
from agent.adapters.token import no_token, read_token
from agent.assignments import Assignment, OwnVm, PodContainer
from agent.cgroups.metrics import CgroupMetrics
from agent.config import read_policy
from agent.core.events import Fault
from agent.core.policy import BatchSchedule, Policy
from agent.exporter import explain_guard, routes
from agent.ports import PortError, SchedulerClient, TokenSource
from agent.runner import Ports, Runner
from agent.settings import AgentSettings
from agent.supervisor import RunnerFactory, Supervisor
from agent.telemetry import LOG
from protocol.guest.database import DatabaseState
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
from protocol.runtime.keep_alive import no_cookies, probed_transport
from protocol.runtime.tls_files import client_tls, following, unverified_client_tls
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

BATCH_INTERVAL = Seconds(5.0)
"""A third of the default tick, so that the requests of a node's VMs go in three batches."""

DEFAULT_TIMEOUT = 30.0
"""Timeout of the HTTP clients in seconds; every call also has its own, usually shorter deadline."""


async def run(settings: AgentSettings, clock: Clock, stop: asyncio.Event) -> None:
    """Run the agent until ``stop`` is set. Raises ``OSError`` if it cannot listen."""
    to_scheduler = _trust("scheduler", settings.scheduler_url, settings.scheduler_ca)
    to_api = _trust("kubernetes-api", settings.api_url, settings.api_ca)
    to_guests = _guest_tls(settings.guest_certificates)
    async with AsyncExitStack() as stack:
        # One connection pool per kind of peer, each with its own trust.
        guests, for_scheduler, for_api = [
            await stack.enter_async_context(plain_pool(tls)) for tls in (to_guests, to_scheduler, to_api)
        ]
        api = LightKubernetesApi(for_api, settings.api_url, _identity(settings.api_token), API_DEADLINE)
        scheduler = _scheduler(settings, clock, for_scheduler, to_scheduler)
        source = _source(settings, api)
        create_runner = _runner_factory(settings, clock, api, guests, scheduler, source)
        supervisor = Supervisor(source, create_runner, Policy(), clock)
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


def _source(settings: AgentSettings, api: LightKubernetesApi) -> OwnVm | NodePods:
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
            # Read the file before the supervisor's task runs, so that no VM starts with the default policy.
            file.begin(supervisor.use_policy, supervisor)
            running.append(tasks.create_task(file.follow(supervisor.use_policy, supervisor, clock)))
        await stop.wait()
        # Stop without waiting: a restarted agent allows for anything still in flight.
        for task in running:
            task.cancel()


def _scheduler(
    settings: AgentSettings, clock: Clock, client: httpx.AsyncClient, tls: ssl.SSLContext
) -> SchedulerClient:
    """The scheduler client. A node's agent sends batches."""
    identity, url = _identity(settings.scheduler_token), settings.scheduler_url
    single = HttpScheduler(client, url, identity, ASK_DEADLINE, settings.protocol)
    # Only the current wire version supports batches, and a sidecar has only one VM.
    if settings.node is None or settings.protocol is not AGENT_SPEAKS:
        return single
    return NodeScheduler(single, BatchConnection(url, tls, identity, ASK_DEADLINE), clock)


def _runner_factory(  # noqa: PLR0913, PLR0917 - shared by all runners
    settings: AgentSettings,
    clock: Clock,
    api: LightKubernetesApi,
    guests: httpx.AsyncClient,
    scheduler: SchedulerClient,
    source: OwnVm | NodePods,
) -> RunnerFactory:
    # All VMs of the node share a phase, so that their requests are due together and fit into few batches. The jitter
    # spreads the nodes of a cluster.
    phase = Instant(clock.now() + BATCH_INTERVAL * clock.jitter())
    schedule = BatchSchedule(BATCH_INTERVAL, phase) if isinstance(scheduler, NodeScheduler) else None

    def ports_of(assignment: Assignment) -> Ports:
        container = assignment.container
        if container is not None and settings.cgroup_root is not None and isinstance(source, NodePods):
            vm_api = PodApi(api, assignment.pod, container.pod_uid, source.states)
            return _pod_ports(settings, clock, vm_api, scheduler, container, settings.cgroup_root)
        # An IPv6 address needs brackets in a URL. A sidecar has no address here, and no {pod_ip} in its URLs.
        address = url_host(assignment.pod_ip) if assignment.pod_ip else ""
        metrics, database = (url.replace("{pod_ip}", address) for url in (settings.metrics_url, settings.database_url))
        monitor = settings.monitor_url and settings.monitor_url.replace("{pod_ip}", address)
        return Ports(
            metrics=NodeExporter(metrics, SCRAPE_DEADLINE),
            scheduler=scheduler,
            vm_api=NeonVm(api, assignment.vm),
            database=partial(database_status, guests, database, DATABASE_DEADLINE),
            clock=clock,
            monitor=GuestMonitor(monitor, MONITOR_DEADLINE).connect if monitor else None,
        )

    def create_runner(assignment: Assignment, policy: Policy, growths: Histogram) -> Runner:
        return Runner(
            assignment,
            ports_of(assignment),
            policy,
            # Start sequence numbers at the wall clock, so that a restarted agent continues above its predecessor.
            time.time_ns(),
            growths,
            unit=settings.compute_unit,
            schedule=schedule,
        )

    return create_runner


def _pod_ports(  # noqa: PLR0913, PLR0917 - the inputs of its ports
    settings: AgentSettings,
    clock: Clock,
    vm_api: PodApi,
    scheduler: SchedulerClient,
    container: PodContainer,
    root: Path,
) -> Ports:
    reclaim = PodReclaim(settings.reclaimer, root, container.pod_uid, container.container_id, clock)
    return Ports(
        metrics=CgroupMetrics(root, container.pod_uid, container.container_id),
        scheduler=scheduler,
        vm_api=vm_api,
        database=_no_database_status,
        clock=clock,
        monitor=reclaim.connect,
    )


async def _no_database_status() -> DatabaseState:
    raise PortError(Fault.GUEST, texts.NO_DATABASE_STATUS)


def plain_pool(verify: ssl.SSLContext) -> httpx.AsyncClient:
    """An HTTP client that ignores proxies and certificates from the environment."""
    # With httpx's default connection limit, the VMs of a large node would wait for each other.
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None, keepalive_expiry=30.0)
    transport = probed_transport(verify, limits)
    return httpx.AsyncClient(transport=transport, trust_env=False, timeout=DEFAULT_TIMEOUT, cookies=no_cookies())


def no_authorities() -> ssl.SSLContext:
    """A TLS context for plain HTTP. It loads no CAs, which would cost memory in every sidecar."""
    return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


def _trust(name: str, url: str, authority: Path | None) -> ssl.SSLContext:
    """The TLS context for ``url``. While the CA file is missing, connections fail."""
    if not url.startswith("https://"):
        return no_authorities()
    # Without a CA file, trust the system's CAs.
    if authority is None:
        return trusting()
    return following(client_tls(name, authority), ssl.PROTOCOL_TLS_CLIENT)


def _guest_tls(folder: Path | None) -> ssl.SSLContext:
    """The TLS context for guests, with the agent's certificate. It does not verify the runner's, because guests are not
    trusted anyway.
    """
    if folder is None:
        return no_authorities()
    return following(unverified_client_tls("guests", folder / "tls.crt", folder / "tls.key"), ssl.PROTOCOL_TLS_CLIENT)


def _identity(path: Path | None) -> TokenSource:
    return no_token if path is None else partial(read_token, path)
