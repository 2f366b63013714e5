"""``autoscale-scheduler``: the extender and permit service (S4.10, S4.5). Run with ``--help``."""

from __future__ import annotations

import argparse
import asyncio
import gc
import secrets
import socket
import sys
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from typing import Final

import uvloop

from protocol.kubernetes.api import KubernetesApi
from protocol.messages import ObjectName
from protocol.runtime.clock import Clock, SystemClock
from protocol.runtime.explaining.explain_access import ExplainAccess
from protocol.runtime.followed_file import FollowedFile
from protocol.runtime.kubernetes.direct_api import DirectApi
from protocol.runtime.kubernetes.lease import Leadership
from protocol.runtime.kubernetes.pool import ConnectionPool
from protocol.runtime.kubernetes.token_reviews import TokenReviews
from protocol.runtime.open_files import allow_open_files
from protocol.runtime.program import credentials, prepare, run, stop_on_signals
from protocol.runtime.serving.limits import Limits
from protocol.runtime.serving.listeners import Listener, serve
from protocol.runtime.tls_metrics import followed_by, watch_tls
from protocol.units import Seconds
from scheduler_plugin.app import SchedulerPorts, assemble
from scheduler_plugin.auth.authenticator import CONCURRENCY
from scheduler_plugin.leader_endpoints import LeaderEndpoints, ReplicaAddress
from scheduler_plugin.options import agents_tls, extender_tls, lease_terms, parser
from scheduler_plugin.replica import Replica
from scheduler_plugin.service.service import ActiveService
from scheduler_plugin.settings.document import SchedulerSettings, parse_settings
from scheduler_plugin.telemetry import Telemetry
from scheduler_plugin.web.apps import agents_app, extender_app, probes_app
from scheduler_plugin.web.explain_guard import GuardedExplanations, explain_access

NAME: Final = "autoscale-scheduler"
CONNECTIONS: Final = 128
REVIEW_CONNECTIONS: Final = CONCURRENCY
"""A separate pool, so that a flood of tokens cannot use up connections for bindings and permits."""

LEADING_CONNECTIONS: Final = 3
"""For the Lease, its watch and the EndpointSlices, so that nothing else delays a renewal."""

AGENTS_LIMITS: Final = Limits(connections=8192, per_peer=1024, idle=Seconds(75.0))
EXTENDER_LIMITS: Final = Limits(connections=256, per_peer=256)
METRICS_LIMITS: Final = Limits(connections=256, per_peer=64)

OPEN_FILES: Final = 32_768
"""File descriptor limit, as far as the system allows: more than the connections of all listeners."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the scheduler until SIGTERM or SIGINT; return the exit status."""
    options = parser().parse_args(arguments)
    prepare(options.log_level)
    allow_open_files(OPEN_FILES)
    return run(NAME, _run(options), uvloop.new_event_loop)


async def _run(options: argparse.Namespace) -> None:
    clock, stop = SystemClock(), stop_on_signals()
    telemetry = Telemetry(clock.now)
    file = FollowedFile(options.config, lambda text: parse_settings(text, options.config.parent))
    # Exit if the first file is invalid.
    settings = file.load()
    telemetry.settings_accepted(file.generation)
    creds = credentials(options.kubeconfig, clock)
    async with (
        # Separate pools, so that neither tokens nor bindings delay a renewal of the Lease.
        ConnectionPool(creds, CONNECTIONS) as pool,
        ConnectionPool(creds, REVIEW_CONNECTIONS) as review_pool,
        ConnectionPool(creds, LEADING_CONNECTIONS) as leading_pool,
    ):
        api, reviews = DirectApi(pool, creds.token, NAME), TokenReviews(DirectApi(review_pool, creds.token, NAME))
        leading = DirectApi(leading_pool, creds.token, NAME)
        # A container that restarts in its pod keeps the hostname but is another writer.
        identity = f"{socket.gethostname()}-{secrets.token_hex(4)}"
        ports = SchedulerPorts(api, reviews, clock, telemetry, identity)
        is_alone = options.lease is None
        replica, run_all, retire = (
            _without_lease(ports, settings, options) if is_alone else _replica(ports, leading, settings, options)
        )
        feed = replica.context.feed
        access = explain_access(options.explain_token, reviews.api, clock)
        served = listeners(options, replica, access)
        tls_contexts = [listener.tls for listener in served if listener.tls is not None]
        watch_tls(telemetry.registry, [*tls_contexts, *followed_by(creds.tls)])
        # ``freeze_garbage_collector`` freezes the heap once the cluster has been read.
        works = (
            run_all(),
            file.follow(feed.apply_settings, telemetry, clock),
            freeze_garbage_collector(clock, feed.ready.is_set),
        )
        await _serve_until(stop, retire, served, works)


async def _serve_until(
    stop: asyncio.Event,
    retire: Callable[[], Awaitable[object]],
    served: list[Listener],
    works: Iterable[Coroutine[None, None, None]],
) -> None:
    """Run the background tasks and the listeners until ``stop``.

    The Lease is released before the listeners close: an idle TLS client delays their closing by a second.
    """
    is_over = asyncio.Event()
    async with asyncio.TaskGroup() as tasks:
        # The listeners are not in ``background``: they must answer while the scheduler retires.
        background = [tasks.create_task(work) for work in works]
        tasks.create_task(serve(served, is_over))
        await stop.wait()
        # No write may be in flight when the background tasks end, because that releases the Lease.
        await retire()
        for task in background:
            task.cancel()
        # The Lease is released while the tasks unwind.
        await asyncio.wait(background)
        is_over.set()


Program = tuple[ActiveService, Callable[[], Coroutine[None, None, None]], Callable[[], Awaitable[object]]]
"""The scheduler of this process, its background, and a function that ends writes in flight."""


def _without_lease(ports: SchedulerPorts, settings: SchedulerSettings, options: argparse.Namespace) -> Program:
    parts, hold_back = assemble(ports, settings), Seconds(float(options.hold_back))
    return parts.service, lambda: parts.run(ports.api, hold_back), parts.context.term.close


def _replica(
    ports: SchedulerPorts, leading: KubernetesApi, settings: SchedulerSettings, options: argparse.Namespace
) -> Program:
    """One of several replicas; ``leading`` is the API client for the Lease and the EndpointSlices."""
    leadership = Leadership(leading, ports.clock, lease_terms(options), ports.identity)
    namespace = options.lease.namespace
    slices = [ObjectName(namespace, name) for name in options.leader_endpoints]
    # A pod's hostname is its name.
    pod = ObjectName(namespace, socket.gethostname())
    endpoints = LeaderEndpoints(leading, ports.clock, slices, ReplicaAddress(options.pod_ip, pod, options.node))
    replica = Replica(ports, leadership, endpoints, settings)
    return replica, replica.run, replica.retire


def listeners(options: argparse.Namespace, replica: ActiveService, access: ExplainAccess) -> list[Listener]:
    """The program's listeners. Raises ``ListenError``."""
    caller = options.extender_client_name
    extender, extender_context = extender_app(replica), extender_tls(options)
    return [
        Listener("agents", agents_app(replica), options.listen_agents, agents_tls(options), AGENTS_LIMITS),
        Listener("extender", extender, options.listen_extender, extender_context, EXTENDER_LIMITS, client=caller),
        Listener(
            "metrics", GuardedExplanations(probes_app(replica), access), options.listen_metrics, limits=METRICS_LIMITS
        ),
    ]


INTERVAL: Final = Seconds(0.5)

LONGEST_START: Final = Seconds(60.0)
"""After this time without a cluster, the garbage collector runs as usual."""

THRESHOLDS: Final = (2_000, 4, 500)
"""See ``gc.set_threshold``; under load Python's own (700, 10, 10) cause several full collections a minute."""


async def freeze_garbage_collector(clock: Clock, is_ready: Callable[[], bool]) -> None:
    """Disable the garbage collector until the cluster has been read, then freeze all objects.

    A full collection visits every object of the cluster: a pause of 0.2 s at 10,000 VMs.
    """
    deadline = clock.now() + LONGEST_START
    # During the first read, repeated collections would take longer than the read itself.
    gc.disable()
    try:
        while not is_ready():
            await clock.sleep(INTERVAL)
            if clock.now() >= deadline:
                gc.enable()
        # Frozen objects are still freed by reference count; only the search for cycles skips them.
        gc.freeze()
        # Garbage of requests is collected young; a full collection comes after millions of objects.
        gc.set_threshold(*THRESHOLDS)
    finally:
        gc.enable()


if __name__ == "__main__":
    sys.exit(main())
