"""Assembles and runs the expander.

All tasks belong to one task group, so an error in one ends all.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import grpc
import httpx2 as httpx
from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4

from protocol.runtime.background_jobs import background_jobs
from protocol.runtime.clock import Clock
from protocol.runtime.credentials import from_pod
from protocol.runtime.explaining.probe_server import Route, listening
from protocol.runtime.followed_file import FollowedFile
from protocol.runtime.kubernetes.http_api import HttpApi, http_client
from protocol.runtime.serving.http_requests import HttpResponse
from protocol.runtime.tls_metrics import watch_tls
from scheduler_plugin.expander.choice import judge
from scheduler_plugin.expander.cluster_size import ClusterSize
from scheduler_plugin.expander.failures import Failures
from scheduler_plugin.expander.service import CHANNEL_OPTIONS, MOST_CALLS, Expander, credentials, followed
from scheduler_plugin.expander.settings import ExpanderSettings, host_and_port, parse_settings
from scheduler_plugin.expander.telemetry import LOG, PriceExpanderTelemetry

NAME: Final = "autoscale-expander"
CONNECTIONS: Final = httpx.Limits(max_connections=1, max_keepalive_connections=1)
STOP_GRACE: Final = 1.0
"""How long requests in flight may take at shutdown, in seconds."""


@dataclass(frozen=True, slots=True)
class Addresses:
    """The ports on which the expander listens."""

    port: int
    metrics_port: int


@asynccontextmanager
async def serving(path: Path | None, clock: Clock, environment: Mapping[str, str]) -> AsyncIterator[Addresses]:
    """Run an expander with the settings file at ``path``, or with the defaults if None.

    Raises ``FileRefusedError``, ``CredentialsError``, ``OSError``, or ``RuntimeError`` if an address is in use.
    """
    file = None if path is None else FollowedFile(path, parse_settings)
    settings = ExpanderSettings() if file is None else file.load()
    telemetry = PriceExpanderTelemetry()
    async with AsyncExitStack() as stack:
        size = ClusterSize(settings.cluster_nodes, _api(environment, clock, stack))
        telemetry.watch_cluster_size(size.nodes)
        ranked = partial(judge, settings.ranking, size.nodes)
        expander = Expander(ranked, Failures(settings.failures), telemetry, clock)

        def take(new: ExpanderSettings) -> None:
            # Prices and failure rules apply immediately; addresses and certificate paths need a restart.
            size.fixed = new.cluster_nodes
            expander.judge = partial(judge, new.ranking, size.nodes)
            expander.failures.rules = new.failures

        addresses = await _serve(settings, expander, telemetry, stack)
        jobs = [size.follow(clock)]
        if file is not None:
            jobs.append(file.follow(take, telemetry, clock))
        async with background_jobs(*jobs):
            yield addresses


def _api(environment: Mapping[str, str], clock: Clock, stack: AsyncExitStack) -> HttpApi | None:
    """Client of the cluster's own API; None outside of a cluster. Raises ``CredentialsError``."""
    # The kubelet sets this variable in every pod.
    if not environment.get("KUBERNETES_SERVICE_HOST"):
        return None
    credentials_of_pod = from_pod(environment, clock)
    api = HttpApi(http_client(credentials_of_pod, CONNECTIONS, NAME), credentials_of_pod.token)
    stack.push_async_callback(api.aclose)
    return api


async def _serve(
    settings: ExpanderSettings, expander: Expander, telemetry: PriceExpanderTelemetry, stack: AsyncExitStack
) -> Addresses:
    server = grpc.aio.server(options=CHANNEL_OPTIONS, maximum_concurrent_rpcs=MOST_CALLS)
    server.add_generic_rpc_handlers((expander.handler(),))
    if settings.tls is None:
        port = server.add_insecure_port(settings.listen)
    else:
        certificate = followed(settings.tls.files())
        watch_tls(telemetry.registry, [certificate])
        port = server.add_secure_port(settings.listen, credentials(certificate))
    # Before the start, so that any error below stops the server.
    stack.push_async_callback(server.stop, STOP_GRACE)
    await server.start()
    routes: Mapping[str, Route] = {
        "/metrics": lambda _: HttpResponse(telemetry.page(), content_type=CONTENT_TYPE_PLAIN_0_0_4),
        "/healthz": lambda _: HttpResponse(b"ok\n"),
        # It is ready once it listens, because it can always return all options.
        "/readyz": lambda _: HttpResponse(b"ok\n"),
    }
    host, metrics_port = host_and_port("metricsListen", settings.metrics_listen)
    addresses = Addresses(port, await stack.enter_async_context(listening(host, metrics_port, routes)))
    details = {"port": port, "tls": settings.tls is not None, "metrics_port": addresses.metrics_port}
    LOG.info("serving", extra=details)
    return addresses
