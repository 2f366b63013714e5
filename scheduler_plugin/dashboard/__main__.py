"""``autoscale-dashboard``: the web page of a cluster. Run with ``--help``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Final

import httpx2 as httpx

from protocol.runtime.background_jobs import background_jobs
from protocol.runtime.clock import SystemClock
from protocol.runtime.keep_alive import no_cookies
from protocol.runtime.kubernetes.http_api import HttpApi, http_client
from protocol.runtime.program import credentials, prepare, run, stop_on_signals
from protocol.runtime.serving.limits import Limits
from protocol.runtime.serving.listeners import Listener, serve
from protocol.runtime.serving.probes import probes_app
from protocol.runtime.tls_files import server_tls
from protocol.units import Seconds
from scheduler_plugin.dashboard.app import Dashboard
from scheduler_plugin.dashboard.options import parsed
from scheduler_plugin.dashboard.reviews import ApiAccessReviewer
from scheduler_plugin.dashboard.sources.cluster_sampler import ClusterSampler
from scheduler_plugin.dashboard.sources.http_sources import HttpSources, NodeAgentAddresses
from scheduler_plugin.history.core.retention import RetentionBounds
from scheduler_plugin.history.ports import History
from scheduler_plugin.history.prometheus.queries import PrometheusHistory
from scheduler_plugin.history.recorder import Recorder
from scheduler_plugin.history.sqlite.queries import SqliteHistory
from scheduler_plugin.own_tokens import tokens_of

NAME: Final = "autoscale-dashboard"
CONNECTIONS: Final = httpx.Limits(max_connections=64, max_keepalive_connections=16)
PAGE_LIMITS: Final = Limits(connections=512, per_peer=256, idle=Seconds(75.0))
METRICS_LIMITS: Final = Limits(connections=256, per_peer=64)
PATIENCE: Final = 5.0
QUESTION: Final = 60.0
"""Timeout of a Prometheus query, in seconds."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run until SIGTERM or SIGINT, then return 0; return 2 if it cannot start."""
    options = parsed(arguments)
    prepare(options.log_level)
    return run(NAME, _run(options))


async def _run(options: argparse.Namespace) -> None:
    clock, stop = SystemClock(), stop_on_signals()
    access = credentials(options.kubeconfig, clock)
    async with (
        http_client(access, CONNECTIONS, NAME) as http,
        # A separate pool, so that slow agents cannot block the API server.
        httpx.AsyncClient(limits=CONNECTIONS, timeout=PATIENCE, trust_env=False, cookies=no_cookies()) as around,
    ):
        api = HttpApi(http, access.token)
        agents = NodeAgentAddresses(api, options.agents_namespace, clock) if options.agents_namespace else None
        tokens = tokens_of(options.explain_token, api, access.token, clock)
        sources = HttpSources(around, options.scheduler, options.groups, agents, tokens)
        async with _history(options) as history:
            dashboard = Dashboard(options.title, api, sources, clock, ApiAccessReviewer(api), history, options.labels)
            jobs = [dashboard.run()]
            # Nothing is recorded if there is a Prometheus.
            if options.history is not None and not options.prometheus:
                sampler = ClusterSampler(api, dashboard.sources, clock, dashboard.telemetry)
                bounds = RetentionBounds.of_volume(options.history_volume)
                recorder = Recorder(options.history, sampler, clock, labels=options.labels, bounds=bounds)
                jobs += [sampler.run(), recorder.run()]
            async with background_jobs(*jobs):
                await serve(_listeners(options, dashboard), stop)


@asynccontextmanager
async def _history(options: argparse.Namespace) -> AsyncIterator[History | None]:
    """The history in Prometheus, or else in the recorded file; None without both."""
    if options.prometheus:
        async with httpx.AsyncClient(base_url=options.prometheus, timeout=QUESTION, trust_env=False) as http:
            yield PrometheusHistory(http)
    else:
        yield None if options.history is None else SqliteHistory(options.history)


def _listeners(options: argparse.Namespace, dashboard: Dashboard) -> list[Listener]:
    probes = probes_app(NAME, "The page's program.", dashboard.readiness, dashboard.telemetry.page)
    # ``parsed`` has checked that either both are set or none.
    tls = server_tls("page", options.certificate, options.key) if options.certificate is not None else None
    return [
        Listener("page", dashboard.app, options.listen, tls=tls, limits=PAGE_LIMITS),
        Listener("metrics", probes, options.metrics_listen, limits=METRICS_LIMITS),
    ]


if __name__ == "__main__":
    sys.exit(main())
